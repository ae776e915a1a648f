//! A gRPC client that knows nothing of Marline: it learns the operations of a server by reflection,
//! and calls them with requests in JSON.

// Each test program uses a part of this file.
#![allow(dead_code)]

use marline_runtime::control::Tickets;
use prost_reflect::prost::Message;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Mutex;
use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{FileDescriptorResponse, ServerReflectionRequest};

pub const CONTROL: &str = "marline.v1.Control";
const MAX_BYTES: usize = 256 << 20;

/// Each operation that this process called, with the kind of its error if it failed.
static CALLED: Mutex<BTreeSet<(String, Option<String>)>> = Mutex::new(BTreeSet::new());

pub fn called() -> BTreeSet<(String, Option<String>)> {
    CALLED.lock().unwrap().clone()
}

/// An error status, decoded.
#[derive(Debug)]
pub struct ErrorReply {
    pub code: Code,
    /// The kind of the error in the details, such as `NotFound`.
    pub kind: String,
    pub message: String,
}

pub struct ReflectionClient {
    runtime: Runtime,
    endpoint: Endpoint,
    channel: Channel,
    tickets: Option<Tickets>,
    pool: DescriptorPool,
}

impl ReflectionClient {
    /// Connects, and learns the service by reflection.
    pub fn connect(address: &str, token: Option<&str>) -> Result<ReflectionClient, Status> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let is_socket = address.starts_with("unix:");
        let uri = if is_socket { address.to_owned() } else { format!("http://{address}") };
        let endpoint = Endpoint::from_shared(uri).unwrap();
        let channel = runtime.block_on(async { endpoint.connect_lazy() });
        let tickets = token.map(|token| Tickets::at(address, Some(token.into())).unwrap());
        let pool = DescriptorPool::new();
        let mut generic = ReflectionClient { runtime, endpoint, channel, tickets, pool };
        generic.learn()?;
        Ok(generic)
    }

    /// Returns another client of the same server.
    pub fn sibling(&self) -> ReflectionClient {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(async { self.endpoint.connect_lazy() });
        let (endpoint, tickets, pool) =
            (self.endpoint.clone(), self.tickets.clone(), self.pool.clone());
        ReflectionClient { runtime, endpoint, channel, tickets, pool }
    }

    /// Returns another client of the same server, without a token.
    pub fn without_token(&self) -> ReflectionClient {
        ReflectionClient { tickets: None, ..self.sibling() }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(tickets) = &self.tickets {
            let words = format!("Bearer {}", tickets.ticket());
            request.metadata_mut().insert("authorization", words.parse().unwrap());
        }
        request
    }

    /// Sends a question to the reflection service.
    pub fn reflect(&self, question: MessageRequest) -> Result<MessageResponse, Status> {
        let question =
            ServerReflectionRequest { message_request: Some(question), ..Default::default() };
        let request = self.request(tokio_stream::once(question));
        self.runtime.block_on(async {
            let mut client = ServerReflectionClient::new(self.channel.clone());
            let mut answers = client.server_reflection_info(request).await?.into_inner();
            let answer = answers.message().await?.expect("every question is answered");
            Ok(answer.message_response.expect("an answer has content"))
        })
    }

    /// Lists the services through `v1alpha`, the older version of reflection: some tools know only
    /// that one.
    pub fn services_by_v1alpha(&self) -> BTreeSet<String> {
        use tonic_reflection::pb::v1alpha;
        use v1alpha::server_reflection_request::MessageRequest;
        use v1alpha::server_reflection_response::MessageResponse;
        let question = v1alpha::ServerReflectionRequest {
            message_request: Some(MessageRequest::ListServices(String::new())),
            ..Default::default()
        };
        let request = self.request(tokio_stream::once(question));
        let channel = self.channel.clone();
        let answer = self.runtime.block_on(async {
            let mut client =
                v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
            let mut answers = client.server_reflection_info(request).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap().message_response
        });
        let Some(MessageResponse::ListServicesResponse(services)) = answer else {
            panic!("the answer does not list services")
        };
        services.service.into_iter().map(|service| service.name).collect()
    }

    fn learn(&mut self) -> Result<(), Status> {
        let mut files: Vec<FileDescriptorProto> = Vec::new();
        let mut questions = vec![MessageRequest::FileContainingSymbol(CONTROL.into())];
        while let Some(question) = questions.pop() {
            let MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
                file_descriptor_proto,
            }) = self.reflect(question)?
            else {
                panic!("the answer has no file")
            };
            for bytes in file_descriptor_proto {
                let file = FileDescriptorProto::decode(&bytes[..]).unwrap();
                let dependencies = file.dependency.iter().cloned();
                questions.extend(dependencies.map(MessageRequest::FileByFilename));
                if !files.iter().any(|known| known.name == file.name) {
                    files.push(file);
                }
            }
        }
        self.pool.add_file_descriptor_protos(files).unwrap();
        Ok(())
    }

    /// Returns the names of all operations.
    pub fn operations(&self) -> BTreeSet<String> {
        let service = self.pool.get_service_by_name(CONTROL).unwrap();
        service.methods().map(|method| method.name().to_owned()).collect()
    }

    /// Returns the paths of all operations of all services that reflection names, except health.
    pub fn every_operation(&self) -> BTreeSet<String> {
        let answer = self.reflect(MessageRequest::ListServices(String::new())).unwrap();
        let MessageResponse::ListServicesResponse(services) = answer else {
            panic!("the answer does not list services")
        };
        let names = services.service.into_iter().map(|service| service.name);
        let names = names.filter(|name| name != "grpc.health.v1.Health");
        let mut operations = BTreeSet::new();
        for name in names {
            let question = MessageRequest::FileContainingSymbol(name.clone());
            let MessageResponse::FileDescriptorResponse(files) = self.reflect(question).unwrap()
            else {
                panic!("the answer has no file")
            };
            for bytes in files.file_descriptor_proto {
                let file = FileDescriptorProto::decode(&bytes[..]).unwrap();
                let of_it =
                    file.service.iter().filter(|one| name.ends_with(&format!(".{}", one.name())));
                let methods = of_it.flat_map(|service| &service.method);
                operations.extend(methods.map(|method| format!("/{name}/{}", method.name())));
            }
        }
        operations
    }

    /// Calls a path with an empty message, over a new connection, with this text as
    /// `authorization`.
    pub fn call_with(&self, path: &str, authorization: Option<&str>) -> Result<Vec<u8>, Status> {
        let mut request = Request::new(Vec::new());
        if let Some(words) = authorization {
            request.metadata_mut().insert("authorization", words.parse().unwrap());
        }
        let path: PathAndQuery = path.parse().unwrap();
        self.runtime.block_on(async {
            let mut grpc = Grpc::new(self.endpoint.connect_lazy());
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            Ok(grpc.unary(request, path, Raw).await?.into_inner())
        })
    }

    /// Builds the request of an operation from JSON.
    pub fn message(&self, operation: &str, request: Value) -> DynamicMessage {
        let service = self.pool.get_service_by_name(CONTROL).unwrap();
        let method = service.methods().find(|method| method.name() == operation);
        let input = method.unwrap_or_else(|| panic!("unknown operation {operation}")).input();
        DynamicMessage::deserialize(input, request).unwrap()
    }

    /// Calls an operation.
    pub fn call(&self, operation: &str, request: Value) -> Result<Value, ErrorReply> {
        self.send(operation, self.message(operation, request))
    }

    /// Calls an operation that must succeed.
    #[track_caller]
    pub fn ok(&self, operation: &str, request: Value) -> Value {
        match self.call(operation, request) {
            Ok(reply) => reply,
            Err(refused) => panic!("{operation}: {refused:?}"),
        }
    }

    /// Calls an operation that must fail. Returns the text of the error.
    #[track_caller]
    pub fn fails_with(&self, operation: &str, request: Value, code: Code, kind: &str) -> String {
        match self.call(operation, request) {
            Ok(reply) => panic!("{operation}: {reply}"),
            Err(refused) => {
                let got = (refused.code, &refused.kind[..]);
                assert_eq!(got, (code, kind), "{operation}: {}", refused.message);
                refused.message
            }
        }
    }

    pub fn send(&self, operation: &str, request: DynamicMessage) -> Result<Value, ErrorReply> {
        let service = self.pool.get_service_by_name(CONTROL).unwrap();
        let method = service.methods().find(|method| method.name() == operation).unwrap();
        let answer = self.unary(operation, request, Dynamic(method.output()));
        let answer = answer.map(|reply| {
            let options = SerializeOptions::new()
                .skip_default_fields(false)
                .use_proto_field_name(true)
                .stringify_64_bit_integers(false);
            reply.serialize_with_options(serde_json::value::Serializer, &options).unwrap()
        });
        let answer = answer.map_err(|status| self.decode_error(&status));
        let kind = answer.as_ref().err().map(|refused| refused.kind.clone());
        CALLED.lock().unwrap().insert((operation.to_owned(), kind));
        answer
    }

    /// Calls an operation with this request and codec.
    pub fn unary<C>(
        &self,
        operation: &str,
        request: C::Encode,
        codec: C,
    ) -> Result<C::Decode, Status>
    where
        C: Codec<Encode: Send + Sync + 'static, Decode: Send + Sync + 'static>,
    {
        let path: PathAndQuery = format!("/{CONTROL}/{operation}").parse().unwrap();
        let mut grpc = Grpc::new(self.channel.clone())
            .max_decoding_message_size(MAX_BYTES)
            .max_encoding_message_size(MAX_BYTES);
        self.runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            Ok(grpc.unary(self.request(request), path, codec).await?.into_inner())
        })
    }

    /// Decodes the error in the details of a status.
    pub fn decode_error(&self, status: &Status) -> ErrorReply {
        let error = self.pool.get_message_by_name("marline.v1.Error").unwrap();
        let details = DynamicMessage::decode(error, status.details()).unwrap();
        let kind = details.get_field_by_name("kind").unwrap().as_enum_number().unwrap();
        let kinds = self.pool.get_enum_by_name("marline.v1.ErrorKind").unwrap();
        let kind = kinds.get_value(kind).unwrap().name().to_owned();
        let message = details.get_field_by_name("message").unwrap();
        ErrorReply {
            code: status.code(),
            kind: camel(kind.strip_prefix("ERROR_KIND_").unwrap()),
            message: message.as_str().unwrap().to_owned(),
        }
    }

    /// Returns the answer of the standard health service.
    pub fn health(&self, service: &str) -> Result<i32, Status> {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let mut client = tonic_health::pb::health_client::HealthClient::new(self.channel.clone());
        let answer = self.runtime.block_on(client.check(self.request(request)))?;
        Ok(answer.into_inner().status)
    }
}

/// Converts `NOT_FOUND` to `NotFound`.
fn camel(name: &str) -> String {
    let words = name.split('_').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        format!("{first}{}", rest.to_lowercase())
    });
    words.collect()
}

/// A codec for messages that are known only by their descriptor.
pub struct Dynamic(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = DynamicEncoder;
    type Decoder = Dynamic;
    fn encoder(&mut self) -> DynamicEncoder {
        DynamicEncoder
    }
    fn decoder(&mut self) -> Dynamic {
        Dynamic(self.0.clone())
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;
    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.0.clone(), bytes);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// Encodes dynamic messages.
pub struct DynamicEncoder;

impl Encoder for DynamicEncoder {
    type Item = DynamicMessage;
    type Error = Status;
    fn encode(&mut self, message: DynamicMessage, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(bytes).map_err(|error| Status::internal(error.to_string()))
    }
}

/// A codec for bytes that are not a message.
pub struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Raw;
    type Decoder = Raw;
    fn encoder(&mut self) -> Raw {
        Raw
    }
    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, bytes: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(bytes, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; bytes::Buf::remaining(bytes)];
        bytes::Buf::copy_to_slice(bytes, &mut item);
        Ok(Some(item))
    }
}
