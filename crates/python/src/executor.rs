//! An executor, seen from inside: runs Python functions and actors as it is told. The interpreter's main
//! thread waits for work without its lock, and runs it.

use crate::failure::{of_user_code, to_python};
use crate::fork::generation;
use crate::pickle::{self, Met, Place, Room, function};
use crate::plain;
use crate::session::joined;
use crate::signal::interrupt_main_thread;
use crate::submitted;
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

/// Makes this process an executor until it ends. Does not return, unless it is none.
#[pyfunction]
pub fn serve(py: Python<'_>, variable: &str) {
    let program: Arc<dyn Program> = Arc::new(Interpreter::default());
    py.detach(|| serve_as(variable, &program));
}

/// Whether the task or call that runs on the main thread is to stop; said once, so that nothing is raised while it
/// cleans up, however often it is asked.
#[pyfunction]
pub fn is_to_stop() -> bool {
    static TOLD: Mutex<Option<(TaskId, Attempt)>> = Mutex::new(None);
    let Some(context) = context().filter(|context| context.cancel.is_cancelled()) else {
        return false;
    };
    if LOADING.get() {
        return false; // The task stops when it is loaded.
    }
    let this = Some((context.task, context.attempt));
    let mut told = TOLD.lock().expect("nothing panics under it");
    std::mem::replace(&mut *told, this) != this
}

thread_local! {
    /// This thread loads code or arguments. An interrupt would leave half-imported modules behind, for every later task.
    static LOADING: Cell<bool> = const { Cell::new(false) };
}

/// Loads something that is needed to run a task. The task is interrupted afterwards, if it is to stop.
fn loading<R>(py: Python<'_>, load: impl FnOnce() -> PyResult<R>) -> PyResult<R> {
    LOADING.set(true);
    let loaded = load();
    LOADING.set(false);
    if context().is_some_and(|context| context.cancel.is_cancelled()) {
        is_to_stop(); // Nothing is raised once more.
        return Err(to_python(py, &Error::cancelled("the task was cancelled before it ran")));
    }
    loaded
}

/// Functions and classes whose code comes with the arguments.
#[derive(Default)]
struct Interpreter {
    /// Those that were loaded, by name.
    loaded: Mutex<Map<Arc<str>, Py<PyAny>>>,
}

impl Interpreter {
    /// The function or class that is meant, and the values that are arguments: the last value is its code with its
    /// environment. One that came without code is imported.
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
            None => helper(py, Helper::Find)?.call1((&*invocation.name,))?,
            Some(Payload { inline, buffers, code_version, .. }) => {
                let environment = buffers.first().map(|buffer| PyBytes::new(py, buffer));
                let code = PyBytes::new(py, inline);
                let code = (&*invocation.name, code, code_version, environment);
                helper(py, Helper::Code)?.call1(code)?
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
         function that can be imported where it runs (python:package.module.function)"
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
            run(invocation, function, values, Results::of_task(invocation))
        })
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        user_code(|py| {
            show_gpus(py, invocation)?;
            let (class, values) = self.load(py, invocation)?;
            let all = arguments(py, invocation, values)?;
            let (object, is_async): (Py<PyAny>, bool) =
                helper(py, Helper::Construct)?.call1((class, all.0, all.1, all.2))?.extract()?;
            Ok(Arc::new(Actor { object, is_async }) as Arc<dyn Instance>)
        })
    }

    /// A signal ends what the main thread waits for, and its handler raises. Code on other threads is
    /// reached through the interpreter, for which somebody else has to wait. What it submitted stops with it,
    /// unless it is to stop alone.
    fn interrupted(&self, task: TaskId, alone: bool) {
        interrupt_main_thread();
        let _ = thread::Builder::new().name("marline-cancel".into()).spawn(move || {
            if !alone {
                submitted::stop(task);
            }
            Python::attach(|py| {
                // What has ended meanwhile cannot be stopped any more.
                let _ =
                    helper(py, Helper::Interrupt).and_then(|stop| stop.call1((task.to_string(),)));
            });
        });
    }
}

/// An actor that lives here.
struct Actor {
    object: Py<PyAny>,
    is_async: bool,
}

impl Instance for Actor {
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let call = |py: Python<'_>| {
            let method = self.object.bind(py).getattr(&*invocation.name)?;
            run(invocation, method, &invocation.values, Results::of_call(invocation))
        };
        let results = Results::of_call(invocation);
        guarded(|py| call(py).or_else(|error| results.raised(py, error)))
    }

    fn load_checkpoint(&self, checkpoint: &Payload) -> Result<(), Error> {
        user_code(|py| {
            let state = pickle::decode(py, checkpoint)?;
            helper(py, Helper::Load)?.call1((&self.object, state, self.is_async)).map(drop)
        })
    }

    fn exit(&self) {
        // Whatever is raised there has been printed, and it ends anyway.
        let _ = Python::attach(|py| helper(py, Helper::Exit)?.call0().map(drop));
    }

    fn is_async(&self) -> bool {
        self.is_async
    }

    fn start_async(&self, invocation: &Invocation, end: ReplyCallback) {
        let begin = |py: Python<'_>, end: &Bound<'_, CallEnd>| {
            let method = self.object.bind(py).getattr(&*invocation.name)?;
            let (args, kwargs, along, collects) = arguments(py, invocation, &invocation.values)?;
            let items = Items::of(invocation, Results::of_call(invocation));
            let items = items.map(|items| Bound::new(py, items)).transpose()?;
            let begin = helper(py, Helper::Begin)?;
            begin.call1((method, args, kwargs, along, end, items, collects))?;
            Ok::<_, PyErr>(())
        };
        Python::attach(|py| {
            let results = Results { tried: tried(), ..Results::of_call(invocation) };
            let end = Mutex::new(Some(end));
            let end = CallEnd { end, results, generation: generation() };
            let Ok(end) = Bound::new(py, end) else { return };
            if let Err(error) = begin(py, &end) {
                end.get().tell(py, Err(of_user_code(py, error)));
            }
        });
    }
}

/// Runs a function or a method.
fn run<'py>(
    invocation: &Invocation,
    function: Bound<'py, PyAny>,
    values: &[Value],
    results: Results,
) -> PyResult<Reply> {
    let py = function.py();
    let (args, kwargs, along, collects) = loading(py, || arguments(py, invocation, values))?;
    if let Some(items) = Items::of(invocation, results) {
        let given = (function, args, kwargs, along, items);
        helper(py, Helper::Stream)?.call1(given)?;
        results.keep(py, None, Vec::new())?;
        return Ok(Reply::default());
    }
    let run = if collects { Helper::Collect } else { Helper::Run };
    let result = helper(py, run)?.call1((function, args, kwargs, along))?;
    results.reply(&result)
}

/// Where a generator's items go.
#[pyclass(frozen, module = "marline._native")]
pub struct Items {
    pub items: marline_runtime::ItemProducer,
    results: Results,
}

impl Items {
    /// If items are what is wanted.
    fn of(invocation: &Invocation, results: Results) -> Option<Items> {
        let results = Results { tried: tried(), ..results };
        invocation.items.clone().map(|items| Items { items, results })
    }
}

#[pymethods]
impl Items {
    /// Gives an item, and waits until there is room for the next. Says whether it may go on.
    fn give(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.send(value)?;
        wait_for_room(value.py(), &self.items)?;
        Ok(!self.items.is_stopped())
    }

    /// Gives an item, unless it is to stop.
    fn send(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.items.is_stopped() {
            return Ok(());
        }
        let (py, index) = (value.py(), self.items.given());
        let name = format!("item {index}");
        let (value, _met) = self.results.encode_item(value, &name, index.saturating_add(1))?;
        if !value.referents.is_empty() {
            let kept = self.results.keep(py, Some(index), value.referents.clone());
            kept.inspect_err(|_| self.results.discard(std::slice::from_ref(&value)))?;
        }
        let Err(error) = self.items.yield_item(value.clone()) else { return Ok(()) };
        // Also if it is to stop since it was encoded: nobody else would let go of what is in the store.
        self.results.discard(std::slice::from_ref(&value));
        match error.kind() {
            ErrorKind::Cancelled => Ok(()),
            _ => Err(to_python(py, &error)),
        }
    }

    /// Whether there is room for one more, or it is to stop.
    fn has_room(&self) -> bool {
        self.items.has_room().unwrap_or(true)
    }

    /// Whether it is to stop.
    fn is_stopped(&self) -> bool {
        self.items.is_stopped()
    }
}

/// Who is told how a call ended that was begun.
#[pyclass(frozen, module = "marline._native")]
pub struct CallEnd {
    end: Mutex<Option<ReplyCallback>>,
    results: Results,
    /// Which process began it.
    generation: u64,
}

impl CallEnd {
    fn tell(&self, py: Python<'_>, reply: Result<Reply, Error>) {
        end_if_fork(py, self.generation);
        let end = self.end.lock().expect("nothing panics under it").take();
        if let Some(end) = end {
            end(reply);
        }
    }
}

#[pymethods]
impl CallEnd {
    /// It returned this.
    fn finish(&self, result: &Bound<'_, PyAny>) {
        let py = result.py();
        let reply = self.results.reply(result).map_err(|error| of_user_code(py, error));
        self.tell(py, reply);
    }

    /// It raised this.
    fn fail(&self, py: Python<'_>, error: Bound<'_, PyAny>) {
        self.tell(py, self.results.raised(py, PyErr::from_value(error)));
    }
}

/// Runs what is the user's.
fn user_code<R>(code: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, Error> {
    guarded(|py| code(py).map_err(|error| of_user_code(py, error)))
}

/// Runs it in this process only.
fn guarded<R>(code: impl FnOnce(Python<'_>) -> Result<R, Error>) -> Result<R, Error> {
    let here = generation();
    Python::attach(|py| {
        let result = code(py);
        end_if_fork(py, here);
        result
    })
}

/// If user code forked, and the child came back from it: ends the child. Its parent is the executor; both
/// would answer, and take each other's work.
fn end_if_fork(py: Python<'_>, parent: u64) {
    if generation() != parent {
        let _ = helper(py, Helper::EndFork).and_then(|end| end.call0());
        std::process::abort(); // Reached only if the interpreter cannot end it.
    }
}

/// What is done in Python.
#[derive(Clone, Copy)]
enum Helper {
    ActorExit,
    Begin,
    Code,
    Collect,
    Construct,
    EndFork,
    Exit,
    Fill,
    Find,
    Interrupt,
    IsCodeOf,
    Load,
    Run,
    ShowGpus,
    Stream,
}

/// A function of the executor in Python, looked up once.
fn helper<'py>(py: Python<'py>, helper: Helper) -> PyResult<&'py Bound<'py, PyAny>> {
    const COUNT: usize = Helper::Stream as usize + 1;
    static FUNCTIONS: [PyOnceLock<Py<PyAny>>; COUNT] = [const { PyOnceLock::new() }; COUNT];
    const PLAIN: &str = "marline._executor";
    let (module, name) = match helper {
        Helper::ActorExit => ("marline._actor", "ActorExit"),
        Helper::Begin => ("marline._executor_loop", "begin"),
        Helper::Code => (PLAIN, "code"),
        Helper::Collect => (PLAIN, "collect"),
        Helper::Construct => (PLAIN, "construct"),
        Helper::EndFork => (PLAIN, "end_fork"),
        Helper::Exit => (PLAIN, "leave"),
        Helper::Fill => (PLAIN, "fill"),
        Helper::Find => (PLAIN, "find"),
        Helper::Interrupt => (PLAIN, "interrupt"),
        Helper::IsCodeOf => (PLAIN, "is_code_of"),
        Helper::Load => (PLAIN, "load"),
        Helper::Run => (PLAIN, "run"),
        Helper::ShowGpus => (PLAIN, "show_gpus"),
        Helper::Stream => (PLAIN, "stream"),
    };
    function(py, &FUNCTIONS[helper as usize], module, name)
}

/// User code finds the GPUs it was given where it looks for them.
fn show_gpus(py: Python<'_>, invocation: &Invocation) -> PyResult<()> {
    if invocation.gpus.is_empty() {
        return Ok(());
    }
    helper(py, Helper::ShowGpus)?.call1((invocation.gpus.to_vec(),)).map(drop)
}

/// Arguments by position and by name, the values of context variables that came along, and whether all items are
/// wanted in one result.
type Complete<'py> = (Bound<'py, PyTuple>, Bound<'py, PyDict>, Option<Bound<'py, PyDict>>, bool);

/// The arguments of a call, complete.
fn arguments<'py>(
    py: Python<'py>,
    invocation: &Invocation,
    values: &[Value],
) -> PyResult<Complete<'py>> {
    if invocation.args.inline.is_empty() {
        return Ok((PyTuple::empty(py), PyDict::new(py), None, false)); // A call that its worker makes has none.
    }
    if is_plain(invocation) {
        let args = plain::load_arguments(py, &invocation.args.inline, values)?;
        return Ok((args, PyDict::new(py), None, false));
    }
    let all = pickle::decode(py, &invocation.args)?.cast_into::<PyTuple>()?;
    let (mut args, mut kwargs) = (all.get_item(0)?.cast_into()?, all.get_item(1)?.cast_into()?);
    let along = (all.len() > 2).then(|| all.get_item(2)).transpose()?;
    let along = along.filter(|along| !along.is_none());
    let collects = all.len() > 3;
    if !values.is_empty() {
        let values = values.iter().map(|value| pickle::decode(py, &value.payload));
        let values = PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?;
        (args, kwargs) = helper(py, Helper::Fill)?.call1((args, kwargs, values))?.extract()?;
    }
    Ok((args, kwargs, along.map(Bound::cast_into).transpose()?, collects))
}

/// Whether whoever calls understands plain data only.
fn is_plain(invocation: &Invocation) -> bool {
    invocation.args.encoding == Encoding::MessagePack && !invocation.args.inline.is_empty()
}

/// What is wanted of user code.
#[derive(Clone, Copy)]
struct Results {
    returns: u32,
    is_plain: bool,
    /// A task gives them, not a call of an actor.
    is_of_task: bool,
    /// They are the state of an actor, to be saved.
    is_state: bool,
    /// Whose they are, where that is not to be seen from where they come.
    tried: Option<AttemptId>,
}

/// What runs on this thread.
fn tried() -> Option<AttemptId> {
    context().map(|context| AttemptId { task: context.task, attempt: context.attempt })
}

impl Results {
    fn of_task(invocation: &Invocation) -> Results {
        let (returns, is_plain) = (invocation.returns, is_plain(invocation));
        Results { returns, is_plain, is_of_task: true, is_state: false, tried: None }
    }

    fn of_call(invocation: &Invocation) -> Results {
        let is_state = &*invocation.name == SAVE_METHOD;
        Results { is_of_task: false, is_state, ..Results::of_task(invocation) }
    }

    fn encode(self, result: &Bound<'_, PyAny>, name: &str, index: u32) -> PyResult<(Value, Met)> {
        self.encode_to(objects(), result, name, index)
    }

    /// The same, of one of many.
    fn encode_item(
        self,
        item: &Bound<'_, PyAny>,
        name: &str,
        index: u32,
    ) -> PyResult<(Value, Met)> {
        self.encode_to(objects().map(ObjectStoreHandle::allocating_ahead), item, name, index)
    }

    fn encode_to(
        self,
        objects: Option<ObjectStoreHandle>,
        result: &Bound<'_, PyAny>,
        name: &str,
        index: u32,
    ) -> PyResult<(Value, Met)> {
        if self.is_plain {
            return Ok((plain::dump(result)?.into(), Met::default()));
        }
        let room = |_| self.room(objects.clone()?, index);
        let encoded = match self.is_of_task {
            true => pickle::encode_result_of_task(result, name, room)?,
            false => pickle::encode(result, name, room)?,
        };
        Ok((encoded.value, encoded.met))
    }

    /// Where a large result goes. The state of an actor is the controller's.
    fn room(self, objects: ObjectStoreHandle, index: u32) -> Option<Room> {
        let tried = self.tried.or_else(tried).filter(|_| !self.is_state)?;
        Some(Room { place: Place::Here(objects), object: ObjectId::of(tried.task, index) })
    }

    /// Nobody gets these.
    fn discard(self, values: &[Value]) {
        let stored = values.iter().filter_map(|value| value.payload.stored_object());
        if let Some(objects) = objects() {
            stored.for_each(|object| objects.discard(object));
        }
    }

    /// What user code gave back, as it travels.
    fn reply(self, result: &Bound<'_, PyAny>) -> PyResult<Reply> {
        let mut all_met = Vec::new(); // Until it is said what they name.
        let values = match self.returns {
            0 => Vec::new(),
            1 => {
                let (value, met) = self.encode(result, "the result", 0)?;
                all_met.push(met);
                vec![value]
            }
            _ => {
                let mut values = Vec::new();
                let results = result.try_iter().map_err(|_| self.is_no_sequence(result))?;
                for (one, index) in results.zip(0..) {
                    let name = format!("the result[{index}]");
                    let encoded = one.and_then(|one| self.encode(&one, &name, index));
                    let (value, met) = encoded.inspect_err(|_| self.discard(&values))?;
                    values.push(value);
                    all_met.push(met);
                }
                values
            }
        };
        let named = values.iter().flat_map(|value| value.referents.iter().copied());
        self.keep(result.py(), None, named.collect())?;
        Ok(Reply { values, ..Reply::default() })
    }

    /// What is kept is held by this process before the task lets go of it, and what is named until the answer, or
    /// the item, has come, which takes another way than what this process says.
    fn keep(self, py: Python<'_>, item: Option<u32>, named: Vec<Referent>) -> PyResult<()> {
        let Some(session) = joined(py)? else { return Ok(()) };
        if named.is_empty() && session.held.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let synced = py.detach(|| {
            let client = session.client()?;
            if let Some(tried) = self.tried.or_else(tried).filter(|_| !named.is_empty()) {
                client.enclose(tried, item, named)?;
            }
            client.sync()
        });
        synced.map_err(|error| to_python(py, &error))
    }

    fn is_no_sequence(self, result: &Bound<'_, PyAny>) -> PyErr {
        let class = result.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        let returns = self.returns;
        PyTypeError::new_err(format!(
            "{returns} values were asked for (num_returns), one of class {class} was returned: return a tuple"
        ))
    }

    /// What a method raised: its error, or the end of the actor, which the call is not to blame for.
    fn raised(self, py: Python<'_>, error: PyErr) -> Result<Reply, Error> {
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
