//! The inside of an executor: runs Python functions, and hosts actors. The main thread of the
//! interpreter waits for work without the interpreter's lock, and runs it.
//!
//! The parts that must be Python are in `marline/_executor/runner.py` and
//! `marline/_executor/event_loop.py`. [`Helper`] lists their functions.

use crate::failure::{of_user_code, to_python};
use crate::fork::generation;
use crate::pickle::{self, Destination, DestinationStore, FoundReferences, function};
use crate::plain_data;
use crate::session::session_if_any;
use crate::signal::interrupt_main_thread;
use crate::submissions;
use crate::wait::wait_for_room;
use marline_runtime::core::error::{Error, ErrorKind};
use marline_runtime::core::id::{Attempt, ObjectId, Referent, TaskId};
use marline_runtime::core::map::Map;
use marline_runtime::core::message::AttemptId;
use marline_runtime::core::payload::{Encoding, Payload, Value};
use marline_runtime::core::spec::SAVE_METHOD;
use marline_runtime::{
    Instance, Invocation, ObjectStoreHandle, Program, Reply, ReplyCallback, context, objects,
    serve_as,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

/// Makes this process an executor until it ends. Returns only if the environment variable says that
/// this process is not an executor.
#[pyfunction]
pub fn serve(py: Python<'_>, variable: &str) {
    let program: Arc<dyn Program> = Arc::new(Interpreter::default());
    py.detach(|| serve_as(variable, &program));
}

/// Returns whether the task or call on the main thread was cancelled. Returns `true` once for each
/// attempt: a repeated signal must not raise again while user code cleans up.
#[pyfunction]
pub fn take_cancellation() -> bool {
    static TOLD: Mutex<Option<(TaskId, Attempt)>> = Mutex::new(None);
    let Some(context) = context().filter(|context| context.cancel.is_cancelled()) else {
        return false;
    };
    if LOADING.get() {
        return false; // `loading` checks for a cancellation when it has finished.
    }
    let this = Some((context.task, context.attempt));
    let mut reported = TOLD.lock().expect("nothing panics under it");
    std::mem::replace(&mut *reported, this) != this
}

thread_local! {
    /// Whether this thread loads code or arguments. An interrupt would leave half-imported modules
    /// to every later task.
    static LOADING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `load`, which loads what a task needs, without an interrupt. Fails afterwards if the task
/// was cancelled.
fn loading<R>(py: Python<'_>, load: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
    LOADING.set(true);
    let loaded = load();
    LOADING.set(false);
    if context().is_some_and(|context| context.cancel.is_cancelled()) {
        take_cancellation(); // The error below is the interrupt: no signal raises it again.
        return Err(to_python(py, &Error::cancelled("the task was cancelled before it ran")));
    }
    loaded
}

/// The program of Python executors. It runs functions and classes whose code comes with the
/// arguments, or that it can import by name.
#[derive(Default)]
struct Interpreter {
    /// The functions and classes that were loaded, by name.
    loaded: Mutex<Map<Arc<str>, Py<PyAny>>>,
}

impl Interpreter {
    /// Returns the function or class of an invocation, and the values of its arguments. With
    /// pickled arguments, the last value is the code with its runtime environment. With plain data
    /// there is no code: the function or class is imported by its name.
    fn load<'py, 'a>(
        &self,
        py: Python<'py>,
        invocation: &'a Invocation,
    ) -> PyResult<(Bound<'py, PyAny>, &'a [Value])> {
        let (code, values) = match invocation.values.split_last() {
            _ if is_plain(invocation) => (None, &*invocation.values),
            Some((code, values)) => (Some(&code.payload), values),
            None => return Err(to_python(py, &without_code(&invocation.name))),
        };
        let known = {
            let loaded = self.loaded.lock().expect("nothing panics under it");
            loaded.get(&invocation.name).map(|known| known.bind(py).clone())
        };
        if let Some(known) = known {
            return Ok((known, values));
        }
        let loaded = match code {
            None => helper(py, Helper::ImportByName)?.call1((&*invocation.name,))?,
            Some(Payload { inline, buffers, code_version, .. }) => {
                let environment = buffers.first().map(|buffer| PyBytes::new(py, buffer));
                let code = PyBytes::new(py, inline);
                let code = (&*invocation.name, code, code_version, environment);
                helper(py, Helper::LoadCode)?.call1(code)?
            }
        };
        let name = invocation.name.clone();
        self.loaded.lock().expect("nothing panics under it").insert(name, loaded.clone().unbind());
        Ok((loaded, values))
    }
}

fn without_code(name: &str) -> Error {
    Error::invalid(format!(
        "{name:?} came with pickled arguments and without its code: send the arguments as MessagePack, and name a \
         function that the executor can import (python:package.module.function)"
    ))
}

impl Program for Interpreter {
    fn comes_with_code(&self) -> bool {
        true
    }

    fn is_code_of(&self, name: &str, code: &Payload) -> bool {
        Python::attach(|py| {
            let code = (name, PyBytes::new(py, &code.inline));
            helper(py, Helper::IsCodeOf)?.call1(code)?.is_truthy()
        })
        .unwrap_or(false)
    }

    fn provides(&self) -> Vec<String> {
        Vec::new()
    }

    fn streams(&self) -> bool {
        true
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        user_code(|py| {
            show_gpus(py, invocation)?;
            let (function, values) = loading(py, || self.load(py, invocation))?;
            run(invocation, function, values, ResultEncoder::of_task(invocation))
        })
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        user_code(|py| {
            show_gpus(py, invocation)?;
            let (class, values) = self.load(py, invocation)?;
            let DecodedArguments { args, kwargs, context_values, .. } =
                arguments(py, invocation, values)?;
            let (object, is_async): (Py<PyAny>, bool) = helper(py, Helper::Construct)?
                .call1((class, args, kwargs, context_values))?
                .extract()?;
            Ok(Arc::new(ActorInstance { object, is_async }) as Arc<dyn Instance>)
        })
    }

    /// Interrupts a cancelled task or call. On the main thread, a signal ends the current system
    /// call, and the signal handler raises. Code on other threads is reached through the
    /// interpreter; a new thread waits for the interpreter's lock, because the caller must not.
    /// Unless `alone`, the work that the task has submitted is cancelled, too.
    fn interrupted(&self, task: TaskId, alone: bool) {
        interrupt_main_thread();
        let _ = thread::Builder::new().name("marline-cancel".into()).spawn(move || {
            if !alone {
                submissions::cancel_submitted_by(task);
            }
            Python::attach(|py| {
                // An error means that the task has ended meanwhile.
                let _ =
                    helper(py, Helper::Interrupt).and_then(|stop| stop.call1((task.to_string(),)));
            });
        });
    }
}

/// The instance of an actor in this executor.
struct ActorInstance {
    object: Py<PyAny>,
    is_async: bool,
}

impl Instance for ActorInstance {
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let call = |py: Python<'_>| {
            let method = self.object.bind(py).getattr(&*invocation.name)?;
            run(invocation, method, &invocation.values, ResultEncoder::of_call(invocation))
        };
        let results = ResultEncoder::of_call(invocation);
        guarded(|py| call(py).or_else(|error| results.encode_exception(py, error)))
    }

    fn load_checkpoint(&self, checkpoint: &Payload) -> Result<(), Error> {
        user_code(|py| {
            let state = pickle::decode(py, checkpoint)?;
            helper(py, Helper::LoadCheckpoint)?
                .call1((&self.object, state, self.is_async))
                .map(drop)
        })
    }

    fn exit(&self) {
        // Python has printed what an exit handler raised. The process ends anyway.
        let _ = Python::attach(|py| helper(py, Helper::RunExitHandlers)?.call0().map(drop));
    }

    fn is_async(&self) -> bool {
        self.is_async
    }

    fn start_async(&self, invocation: &Invocation, end: ReplyCallback) {
        let begin = |py: Python<'_>, end: &Bound<'_, CallCompletion>| {
            let method = self.object.bind(py).getattr(&*invocation.name)?;
            let DecodedArguments { args, kwargs, context_values, collected } =
                arguments(py, invocation, &invocation.values)?;
            let items = ItemSender::of(invocation, ResultEncoder::of_call(invocation));
            let items = items.map(|items| Bound::new(py, items)).transpose()?;
            let begin = helper(py, Helper::StartCall)?;
            begin.call1((method, args, kwargs, context_values, end, items, collected))?;
            Ok::<_, PyErr>(())
        };
        Python::attach(|py| {
            let results =
                ResultEncoder { attempt: current_attempt(), ..ResultEncoder::of_call(invocation) };
            let end = Mutex::new(Some(end));
            let end = CallCompletion { end, results, generation: generation() };
            let Ok(end) = Bound::new(py, end) else { return };
            if let Err(error) = begin(py, &end) {
                end.get().tell(py, Err(of_user_code(py, error)));
            }
        });
    }
}

/// Runs a function or a method, and encodes what it returns.
fn run<'py>(
    invocation: &Invocation,
    function: Bound<'py, PyAny>,
    values: &[Value],
    results: ResultEncoder,
) -> PyResult<Reply> {
    let py = function.py();
    let DecodedArguments { args, kwargs, context_values, collected } =
        loading(py, || arguments(py, invocation, values))?;
    if let Some(items) = ItemSender::of(invocation, results) {
        let call_args = (function, args, kwargs, context_values, items);
        helper(py, Helper::Stream)?.call1(call_args)?;
        results.sync_holds(py, None, Vec::new())?;
        return Ok(Reply::default());
    }
    let result = match collected {
        None => helper(py, Helper::Run)?.call1((function, args, kwargs, context_values))?,
        Some(durable) => {
            helper(py, Helper::Collect)?.call1((function, args, kwargs, context_values, durable))?
        }
    };
    results.reply(&result)
}

/// Encodes and sends the items of a generator.
#[pyclass(frozen, module = "marline._native")]
pub struct ItemSender {
    pub items: marline_runtime::ItemProducer,
    results: ResultEncoder,
}

impl ItemSender {
    /// Makes the sender, if the invocation asks for items.
    fn of(invocation: &Invocation, results: ResultEncoder) -> Option<ItemSender> {
        let results = ResultEncoder { attempt: current_attempt(), ..results };
        invocation.items.clone().map(|items| ItemSender { items, results })
    }
}

#[pymethods]
impl ItemSender {
    /// Sends an item, and waits until there is room for the next. Returns `false` if the task was
    /// cancelled.
    fn send_and_wait(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.send(value)?;
        wait_for_room(value.py(), &self.items)?;
        Ok(!self.items.is_stopped())
    }

    /// Sends an item; does nothing if the task was cancelled.
    fn send(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.items.is_stopped() {
            return Ok(());
        }
        let (py, index) = (value.py(), self.items.given());
        let name = format!("item {index}");
        let (value, _found) = self.results.encode_item(value, &name, index.saturating_add(1))?;
        if !value.referents.is_empty() {
            let synced = self.results.sync_holds(py, Some(index), value.referents.clone());
            synced.inspect_err(|_| self.results.discard(std::slice::from_ref(&value)))?;
        }
        let Err(error) = self.items.yield_item(value.clone()) else { return Ok(()) };
        // The item's blob is discarded also if the task was cancelled while the item was encoded:
        // no other code discards it.
        self.results.discard(std::slice::from_ref(&value));
        match error.kind() {
            ErrorKind::Cancelled => Ok(()),
            _ => Err(to_python(py, &error)),
        }
    }

    /// Returns whether there is room for one more item, or the task was cancelled.
    fn has_room(&self) -> bool {
        self.items.has_room().unwrap_or(true)
    }

    /// Returns whether the task was cancelled.
    fn is_stopped(&self) -> bool {
        self.items.is_stopped()
    }
}

/// Reports the outcome of a call that was started on the event loop.
#[pyclass(frozen, module = "marline._native")]
pub struct CallCompletion {
    end: Mutex<Option<ReplyCallback>>,
    results: ResultEncoder,
    /// The [`generation`] of the process that started the call.
    generation: u64,
}

impl CallCompletion {
    fn tell(&self, py: Python<'_>, reply: Result<Reply, Error>) {
        end_if_fork(py, self.generation);
        let end = self.end.lock().expect("nothing panics under it").take();
        if let Some(end) = end {
            end(reply);
        }
    }
}

#[pymethods]
impl CallCompletion {
    /// Reports the value that the method has returned.
    fn finish(&self, result: &Bound<'_, PyAny>) {
        let py = result.py();
        let reply = self.results.reply(result).map_err(|error| of_user_code(py, error));
        self.tell(py, reply);
    }

    /// Reports the exception that the method has raised.
    fn fail(&self, py: Python<'_>, error: Bound<'_, PyAny>) {
        self.tell(py, self.results.encode_exception(py, PyErr::from_value(error)));
    }
}

/// Runs user code, and turns an exception into an error.
fn user_code<R>(code: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, Error> {
    guarded(|py| code(py).map_err(|error| of_user_code(py, error)))
}

/// Runs user code in this process only. If user code forks, and the child returns from user code,
/// the child is ended.
fn guarded<R>(code: impl FnOnce(Python<'_>) -> Result<R, Error>) -> Result<R, Error> {
    let here = generation();
    Python::attach(|py| {
        let result = code(py);
        end_if_fork(py, here);
        result
    })
}

/// Ends this process if it is a fork that returned from user code. Its parent is the executor: both
/// would send answers, and take each other's work.
fn end_if_fork(py: Python<'_>, parent: u64) {
    if generation() != parent {
        let _ = helper(py, Helper::EndFork).and_then(|end| end.call0());
        std::process::abort(); // Only reached if the interpreter could not end the process.
    }
}

/// The functions of the executor that are written in Python.
#[derive(Clone, Copy)]
enum Helper {
    ActorExit,
    Collect,
    Construct,
    EndFork,
    FillArguments,
    ImportByName,
    Interrupt,
    IsCodeOf,
    LoadCheckpoint,
    LoadCode,
    Run,
    RunExitHandlers,
    ShowGpus,
    StartCall,
    Stream,
}

/// Returns a function of the executor in Python, which is looked up once.
fn helper<'py>(py: Python<'py>, helper: Helper) -> PyResult<&'py Bound<'py, PyAny>> {
    const COUNT: usize = Helper::Stream as usize + 1;
    static FUNCTIONS: [PyOnceLock<Py<PyAny>>; COUNT] = [const { PyOnceLock::new() }; COUNT];
    const EXECUTOR_MODULE: &str = "marline._executor.runner";
    let (module, name) = match helper {
        Helper::ActorExit => ("marline._api.actors", "ActorExit"),
        Helper::Collect => (EXECUTOR_MODULE, "collect"),
        Helper::Construct => (EXECUTOR_MODULE, "construct"),
        Helper::EndFork => (EXECUTOR_MODULE, "end_fork"),
        Helper::FillArguments => (EXECUTOR_MODULE, "fill_arguments"),
        Helper::ImportByName => (EXECUTOR_MODULE, "import_by_name"),
        Helper::Interrupt => (EXECUTOR_MODULE, "interrupt"),
        Helper::IsCodeOf => (EXECUTOR_MODULE, "is_code_of"),
        Helper::LoadCheckpoint => (EXECUTOR_MODULE, "load_checkpoint"),
        Helper::LoadCode => (EXECUTOR_MODULE, "load_code"),
        Helper::Run => (EXECUTOR_MODULE, "run"),
        Helper::RunExitHandlers => (EXECUTOR_MODULE, "run_exit_handlers"),
        Helper::ShowGpus => (EXECUTOR_MODULE, "show_gpus"),
        Helper::StartCall => ("marline._executor.event_loop", "start_call"),
        Helper::Stream => (EXECUTOR_MODULE, "stream"),
    };
    function(py, &FUNCTIONS[helper as usize], module, name)
}

/// Sets `CUDA_VISIBLE_DEVICES` to the GPUs that were assigned to the work.
fn show_gpus(py: Python<'_>, invocation: &Invocation) -> PyResult<()> {
    if invocation.gpus.is_empty() {
        return Ok(());
    }
    helper(py, Helper::ShowGpus)?.call1((invocation.gpus.to_vec(),)).map(drop)
}

/// The decoded arguments of an invocation.
struct DecodedArguments<'py> {
    args: Bound<'py, PyTuple>,
    kwargs: Bound<'py, PyDict>,
    /// The values of propagated context variables.
    context_values: Option<Bound<'py, PyDict>>,
    /// Whether the items of a generator are durable, if all of them come in one result.
    collected: Option<bool>,
}

impl<'py> DecodedArguments<'py> {
    /// Makes positional arguments only: plain data, or no arguments at all.
    fn plain(args: Bound<'py, PyTuple>) -> DecodedArguments<'py> {
        let kwargs = PyDict::new(args.py());
        DecodedArguments { args, kwargs, context_values: None, collected: None }
    }
}

/// Decodes the arguments of an invocation, and fills in the values of references.
fn arguments<'py>(
    py: Python<'py>,
    invocation: &Invocation,
    values: &[Value],
) -> PyResult<DecodedArguments<'py>> {
    if invocation.args.inline.is_empty() {
        // A call that the worker itself makes (to save a checkpoint) has none.
        return Ok(DecodedArguments::plain(PyTuple::empty(py)));
    }
    if is_plain(invocation) {
        let args = plain_data::load_arguments(py, &invocation.args.inline, values)?;
        return Ok(DecodedArguments::plain(args));
    }
    let all = pickle::decode(py, &invocation.args)?.cast_into::<PyTuple>()?;
    let (mut args, mut kwargs) = (all.get_item(0)?.cast_into()?, all.get_item(1)?.cast_into()?);
    let context_values = (all.len() > 2).then(|| all.get_item(2)).transpose()?;
    let context_values = context_values.filter(|context_values| !context_values.is_none());
    let collected = (all.len() > 3).then(|| all.get_item(3)?.extract()).transpose()?;
    if !values.is_empty() {
        let values = values.iter().map(|value| pickle::decode(py, &value.payload));
        let values = PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?;
        (args, kwargs) =
            helper(py, Helper::FillArguments)?.call1((args, kwargs, values))?.extract()?;
    }
    let context_values = context_values.map(Bound::cast_into).transpose()?;
    Ok(DecodedArguments { args, kwargs, context_values, collected })
}

/// Returns whether the caller sends and expects plain data.
fn is_plain(invocation: &Invocation) -> bool {
    invocation.args.encoding == Encoding::MessagePack && !invocation.args.inline.is_empty()
}

/// Encodes the results of one invocation, as the invocation asks for them.
#[derive(Clone, Copy)]
struct ResultEncoder {
    returns: u32,
    is_plain: bool,
    /// Whether a task returns the results, not a call of an actor.
    is_of_task: bool,
    /// Whether the result is the state of an actor, for a checkpoint.
    is_state: bool,
    /// The attempt that returns the results. `None` if the thread that encodes them is the one that
    /// runs it.
    attempt: Option<AttemptId>,
}

/// Returns the attempt that runs on this thread.
fn current_attempt() -> Option<AttemptId> {
    context().map(|context| AttemptId { task: context.task, attempt: context.attempt })
}

impl ResultEncoder {
    fn of_task(invocation: &Invocation) -> ResultEncoder {
        let (returns, is_plain) = (invocation.returns, is_plain(invocation));
        ResultEncoder { returns, is_plain, is_of_task: true, is_state: false, attempt: None }
    }

    fn of_call(invocation: &Invocation) -> ResultEncoder {
        let is_state = &*invocation.name == SAVE_METHOD;
        ResultEncoder { is_of_task: false, is_state, ..ResultEncoder::of_task(invocation) }
    }

    fn encode(
        self,
        result: &Bound<'_, PyAny>,
        name: &str,
        index: u32,
    ) -> PyResult<(Value, FoundReferences)> {
        self.encode_to(objects(), result, name, index)
    }

    /// Encodes one of many items: the object store may allocate memory for the next one ahead.
    fn encode_item(
        self,
        item: &Bound<'_, PyAny>,
        name: &str,
        index: u32,
    ) -> PyResult<(Value, FoundReferences)> {
        self.encode_to(objects().map(ObjectStoreHandle::allocating_ahead), item, name, index)
    }

    fn encode_to(
        self,
        objects: Option<ObjectStoreHandle>,
        result: &Bound<'_, PyAny>,
        name: &str,
        index: u32,
    ) -> PyResult<(Value, FoundReferences)> {
        if self.is_plain {
            return Ok((plain_data::dump(result)?.into(), FoundReferences::default()));
        }
        let destination = |_| self.destination(objects.clone()?, index);
        let encoded = match self.is_of_task {
            true => pickle::encode_result_of_task(result, name, destination)?,
            false => pickle::encode(result, name, destination)?,
        };
        Ok((encoded.value, encoded.found))
    }

    /// Returns where a large result is written. The state of an actor goes to the controller,
    /// inline.
    fn destination(self, objects: ObjectStoreHandle, index: u32) -> Option<Destination> {
        let attempt = self.attempt.or_else(current_attempt).filter(|_| !self.is_state)?;
        Some(Destination {
            store: DestinationStore::Local(objects),
            object: ObjectId::of(attempt.task, index),
        })
    }

    /// Discards the blobs of values that are not sent.
    fn discard(self, values: &[Value]) {
        let stored = values.iter().filter_map(|value| value.payload.stored_object());
        if let Some(objects) = objects() {
            stored.for_each(|object| objects.discard(object));
        }
    }

    /// Encodes the value that user code has returned, and reports its referents
    /// ([`sync_holds`](Self::sync_holds)).
    fn reply(self, result: &Bound<'_, PyAny>) -> PyResult<Reply> {
        let mut all_found = Vec::new(); // Kept until `sync_holds` has reported the referents.
        let values = match self.returns {
            0 => Vec::new(),
            1 => {
                let (value, found) = self.encode(result, "the result", 0)?;
                all_found.push(found);
                vec![value]
            }
            _ => {
                let mut values = Vec::new();
                let results = result.try_iter().map_err(|_| self.not_a_sequence_error(result))?;
                for (returned, index) in results.zip(0..) {
                    let name = format!("the result[{index}]");
                    let encoded =
                        returned.and_then(|returned| self.encode(&returned, &name, index));
                    let (value, found) = encoded.inspect_err(|_| self.discard(&values))?;
                    values.push(value);
                    all_found.push(found);
                }
                values
            }
        };
        let named = values.iter().flat_map(|value| value.referents.iter().copied());
        self.sync_holds(result.py(), None, named.collect())?;
        Ok(Reply { values, ..Reply::default() })
    }

    /// Waits until the controller knows all holds of this process. Call it before the executor
    /// answers: the end of the task releases the holds on its arguments, and user code may still
    /// have references to them. `named` are the referents in the answer or item. They stay held
    /// until the answer or item has arrived: it takes another route than the messages of this
    /// process, and a `Release` of this process could overtake it.
    fn sync_holds(self, py: Python<'_>, item: Option<u32>, named: Vec<Referent>) -> PyResult<()> {
        let Some(session) = session_if_any(py)? else { return Ok(()) };
        if named.is_empty() && session.hold_count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let synced = py.detach(|| {
            let client = session.client()?;
            if let Some(attempt) =
                self.attempt.or_else(current_attempt).filter(|_| !named.is_empty())
            {
                client.enclose(attempt, item, named)?;
            }
            client.sync()
        });
        synced.map_err(|error| to_python(py, &error))
    }

    fn not_a_sequence_error(self, result: &Bound<'_, PyAny>) -> PyErr {
        let class = result.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        let returns = self.returns;
        PyTypeError::new_err(format!(
            "num_returns={returns}, but a value of class {class} was returned: return a tuple of {returns} values"
        ))
    }

    /// Encodes the exception that a method has raised. `exit_actor()` is not an error: the call
    /// returns `None` and the actor ends.
    fn encode_exception(self, py: Python<'_>, error: PyErr) -> Result<Reply, Error> {
        let exits = helper(py, Helper::ActorExit).is_ok_and(|exit| error.is_instance(py, exit));
        if !exits {
            return Err(of_user_code(py, error));
        }
        let none = |index| Ok(self.encode(&py.None().into_bound(py), "None", index)?.0);
        let values = (0..self.returns).map(none).collect::<PyResult<Vec<_>>>();
        let values = values.map_err(|error| of_user_code(py, error))?;
        Ok(Reply { values, exits: true, ..Reply::default() })
    }
}
