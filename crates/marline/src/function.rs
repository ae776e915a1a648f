//! Traits over functions, constructors and methods with up to eight arguments.

use crate::codec::{Decoder, encode_result};
use marline_runtime::Invocation;
use marline_runtime::core::error::{Error, Failure};
use marline_runtime::core::payload::Payload;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// A function that can be called by name. It takes up to eight arguments that `serde` can decode.
pub trait Function<Args>: Send + Sync + 'static {
    /// The type of its result.
    type Output;
    #[doc(hidden)]
    fn invoke(&self, invocation: &Invocation) -> Result<Self::Output, Error>;
}

/// A function that creates an actor.
pub trait Constructor<T, Args>: Function<Args, Output = T> {}
impl<T, Args, F: Function<Args, Output = T>> Constructor<T, Args> for F {}

/// A method of an actor. It may change the actor.
pub trait Method<T, Args>: Send + Sync + 'static {
    /// The type of its result.
    type Output;
    #[doc(hidden)]
    fn invoke(&self, actor: &mut T, invocation: &Invocation) -> Result<Self::Output, Error>;
}

macro_rules! functions {
    ($($name:ident)*) => {
        impl<Code, Output, $($name: DeserializeOwned + 'static),*> Function<($($name,)*)> for Code
        where
            Code: Fn($($name),*) -> Output + Send + Sync + 'static,
        {
            type Output = Output;
            #[allow(non_snake_case)]
            fn invoke(&self, invocation: &Invocation) -> Result<Output, Error> {
                let takes = <[&str]>::len(&[$(stringify!($name)),*]);
                #[allow(unused_mut, unused_variables)]
                let mut decoder = Decoder::new(invocation, takes)?;
                $(let $name = decoder.next::<$name>()?;)*
                Ok(self($($name),*))
            }
        }

        impl<Actor, Code, Output, $($name: DeserializeOwned + 'static),*> Method<Actor, ($($name,)*)> for Code
        where
            Code: Fn(&mut Actor, $($name),*) -> Output + Send + Sync + 'static,
        {
            type Output = Output;
            #[allow(non_snake_case)]
            fn invoke(&self, actor: &mut Actor, invocation: &Invocation) -> Result<Output, Error> {
                let takes = <[&str]>::len(&[$(stringify!($name)),*]);
                #[allow(unused_mut, unused_variables)]
                let mut decoder = Decoder::new(invocation, takes)?;
                $(let $name = decoder.next::<$name>()?;)*
                Ok(self(actor, $($name),*))
            }
        }
    };
}

functions! {}
functions! { A }
functions! { A B }
functions! { A B C }
functions! { A B C D }
functions! { A B C D E }
functions! { A B C D E F }
functions! { A B C D E F G }
functions! { A B C D E F G H }

/// Encodes the result of a function that cannot fail.
pub(crate) fn plain<T: Serialize + 'static>(value: T) -> Result<Payload, Error> {
    encode_result(&value)
}

/// Encodes the result of a function that may fail with an error of the user's own.
pub(crate) fn fallible<T: Serialize + 'static, E: Display>(
    value: Result<T, E>,
) -> Result<Payload, Error> {
    match value {
        Ok(value) => encode_result(&value),
        Err(error) => Err(own_error(&error)),
    }
}

/// Returns the error of a task whose user code failed. Its class is the type of the user's error.
pub(crate) fn own_error<E: Display>(error: &E) -> Error {
    let class = std::any::type_name::<E>().to_owned();
    Error::failed(error.to_string(), Failure { class, ..Failure::default() })
}

#[cfg(test)]
mod tests {
    use crate::{Cluster, ErrorKind, Program};

    #[test]
    fn errors_about_wrong_arguments_name_the_function() {
        let program = Program::new()
            .task("square", |x: i64| x * x)
            .task("sum", |all: Vec<Option<String>>, _: u8| all.len());
        let cluster = Cluster::local(program).unwrap();
        let client = cluster.client();
        let says = |error: crate::Error, expected: &str| {
            assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, expected));
        };
        let square = || client.task("square");
        says(
            square().submit::<i64>(("seven",)).unwrap().wait().unwrap_err(),
            "argument 1 of \"square\" cannot be read as i64: found text",
        );
        says(
            square().submit::<i64>(()).unwrap().wait().unwrap_err(),
            "\"square\" takes 1 argument, and was given 0",
        );
        says(
            client.task("sum").submit::<usize>((1, 2, 3)).unwrap().wait().unwrap_err(),
            "\"sum\" takes 2 arguments, and was given 3",
        );
        let error = client.task("sum").submit::<usize>((true, 2)).unwrap().wait().unwrap_err();
        let expected = "argument 1 of \"sum\" cannot be read as Vec<Option<String>>: ";
        assert!(error.message().starts_with(expected), "{error}");
        says(
            square().submit::<String>((3_i64,)).unwrap().wait().unwrap_err(),
            "the value cannot be read as String: invalid type: integer `9`, expected a string",
        );
    }
}
