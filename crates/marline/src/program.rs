//! Programs: the functions and actors that a worker provides, registered by name.

use crate::function::{Constructor, Function, Method, fallible, own_error, plain};
use marline_runtime::core::Error;
use marline_runtime::core::payload::Payload;
use marline_runtime::{Instance, Invocation, Reply};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

type Code = Box<dyn Fn(&Invocation) -> Result<Payload, Error> + Send + Sync>;
type ConstructorFn = Box<dyn Fn(&Invocation) -> Result<Arc<dyn Instance>, Error> + Send + Sync>;

/// The functions and actors of a worker, by name. See the [crate](crate) for an example.
#[derive(Default)]
pub struct Program {
    tasks: BTreeMap<String, Code>,
    actors: BTreeMap<String, ConstructorFn>,
}

impl Program {
    /// Returns a program that provides nothing yet.
    pub fn new() -> Program {
        Program::default()
    }

    /// Provides a function under a name. Panics if the name is taken: replacing the first function
    /// without a word would be found out late.
    ///
    /// ```should_panic
    /// use marline::Program;
    ///
    /// Program::new().task("square", |x: i64| x * x).task("square", |x: f64| x * x);
    /// ```
    pub fn task<Args, F>(mut self, name: &str, function: F) -> Program
    where
        F: Function<Args>,
        F::Output: Serialize + 'static,
    {
        let code = move |invocation: &Invocation| function.invoke(invocation).and_then(plain);
        add(&mut self.tasks, "a task", name, Box::new(code));
        self
    }

    /// Provides a function that may fail. The text and the type of its error reach the process that
    /// waits for the task.
    ///
    /// ```
    /// use marline::{Cluster, ErrorKind, Program};
    ///
    /// let program = Program::new().try_task("parse", |text: String| text.parse::<i64>());
    /// let cluster = Cluster::local(program)?;
    /// let parsed = cluster.client().task("parse").submit::<i64>(("seven",))?.wait();
    /// assert_eq!(parsed.unwrap_err().kind(), ErrorKind::Failed);
    /// # Ok::<(), marline::Error>(())
    /// ```
    pub fn try_task<Args, F, T, E>(mut self, name: &str, function: F) -> Program
    where
        F: Function<Args, Output = Result<T, E>>,
        T: Serialize + 'static,
        E: Display,
    {
        let code = move |invocation: &Invocation| function.invoke(invocation).and_then(fallible);
        add(&mut self.tasks, "a task", name, Box::new(code));
        self
    }

    /// Provides an actor under a name: its constructor and its methods. Panics if the name is
    /// taken.
    pub fn actor<T, Args, C>(
        mut self,
        name: &str,
        constructor: C,
        methods: impl FnOnce(Class<T>) -> Class<T>,
    ) -> Program
    where
        T: Send + 'static,
        C: Constructor<T, Args>,
    {
        let make = made_by(methods(Class { methods: BTreeMap::new() }));
        let make = move |invocation: &Invocation| Ok(make(constructor.invoke(invocation)?));
        add(&mut self.actors, "an actor", name, Box::new(make));
        self
    }

    /// Provides an actor whose constructor may fail. A constructor that fails is not run again.
    /// Calls of the actor fail with its error, and the name of the actor is free again.
    pub fn try_actor<T, E, Args, C>(
        mut self,
        name: &str,
        constructor: C,
        methods: impl FnOnce(Class<T>) -> Class<T>,
    ) -> Program
    where
        T: Send + 'static,
        E: Display,
        C: Function<Args, Output = Result<T, E>>,
    {
        let make = made_by(methods(Class { methods: BTreeMap::new() }));
        let make = move |invocation: &Invocation| {
            constructor.invoke(invocation)?.map(&make).map_err(|error| own_error(&error))
        };
        add(&mut self.actors, "an actor", name, Box::new(make));
        self
    }
}

/// Registers `value` under a name. Panics if the name is taken.
fn add<V>(to: &mut BTreeMap<String, V>, what: &str, name: &str, value: V) {
    let before = to.insert(name.into(), value);
    assert!(before.is_none(), "there is {what} {name:?} already: choose another name");
}

/// Returns a function that turns an actor of this class into an instance.
fn made_by<T: Send + 'static>(class: Class<T>) -> impl Fn(T) -> Arc<dyn Instance> {
    let class = Arc::new(class);
    move |actor| Arc::new(RegisteredActor { actor: Mutex::new(actor), class: class.clone() })
}

type Call<T> = Box<dyn Fn(&mut T, &Invocation) -> Result<Payload, Error> + Send + Sync>;

/// The methods of an actor.
pub struct Class<T> {
    methods: BTreeMap<String, Call<T>>,
}

impl<T: 'static> Class<T> {
    /// Provides a method under a name. Panics if the name is taken.
    pub fn method<Args, M>(mut self, name: &str, method: M) -> Class<T>
    where
        M: Method<T, Args>,
        M::Output: Serialize + 'static,
    {
        let call = move |actor: &mut T, invocation: &Invocation| {
            method.invoke(actor, invocation).and_then(plain)
        };
        add(&mut self.methods, "a method", name, Box::new(call));
        self
    }

    /// Provides a method that may fail.
    pub fn try_method<Args, M, R, E>(mut self, name: &str, method: M) -> Class<T>
    where
        M: Method<T, Args, Output = Result<R, E>>,
        R: Serialize + 'static,
        E: Display,
    {
        let call = move |actor: &mut T, invocation: &Invocation| {
            method.invoke(actor, invocation).and_then(fallible)
        };
        add(&mut self.methods, "a method", name, Box::new(call));
        self
    }
}

struct RegisteredActor<T> {
    actor: Mutex<T>,
    class: Arc<Class<T>>,
}

impl<T: Send + 'static> Instance for RegisteredActor<T> {
    fn call(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let method = self.class.methods.get(&*invocation.name).ok_or_else(|| {
            let known: Vec<&str> = self.class.methods.keys().map(String::as_str).collect();
            Error::not_found(format!("no method {:?}: this actor has {known:?}", &*invocation.name))
        })?;
        // A method that panicked leaves the actor in the state of that moment. The next call runs
        // on it, so poisoning is ignored.
        let mut actor = self.actor.lock().unwrap_or_else(PoisonError::into_inner);
        method(&mut actor, invocation).map(reply)
    }
}

fn reply(payload: Payload) -> Reply {
    Reply { values: vec![payload.into()], ..Reply::default() }
}

impl marline_runtime::Program for Program {
    fn provides(&self) -> Vec<String> {
        let actors = self.actors.keys().map(|name| format!("actor:{name}"));
        self.tasks.keys().cloned().chain(actors).collect()
    }

    fn run(&self, invocation: &Invocation) -> Result<Reply, Error> {
        let code = self.tasks.get(&*invocation.name).ok_or_else(|| {
            Error::not_found(format!("no function {:?} in this program", &*invocation.name))
        })?;
        code(invocation).map(reply)
    }

    fn construct(&self, invocation: &Invocation) -> Result<Arc<dyn Instance>, Error> {
        let make = self.actors.get(&*invocation.name).ok_or_else(|| {
            Error::not_found(format!("no actor {:?} in this program", &*invocation.name))
        })?;
        make(invocation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clerk;

    fn works(class: Class<Clerk>) -> Class<Clerk> {
        class.method("work", |_: &mut Clerk| 1)
    }

    #[test]
    fn a_task_and_an_actor_may_have_the_same_name() {
        let program = Program::new().task("clerk", || 1).actor("clerk", || Clerk, works);
        assert_eq!(marline_runtime::Program::provides(&program), ["clerk", "actor:clerk"]);
    }

    #[test]
    #[should_panic(expected = "there is a task \"one\" already")]
    fn a_second_task_of_the_same_name_panics() {
        let _ = Program::new().task("one", || 1).try_task("one", || "1".parse::<i32>());
    }

    #[test]
    #[should_panic(expected = "there is an actor \"clerk\" already")]
    fn a_second_actor_of_the_same_name_panics() {
        let _ = Program::new().actor("clerk", || Clerk, works).actor("clerk", || Clerk, works);
    }

    #[test]
    #[should_panic(expected = "there is a method \"work\" already")]
    fn a_second_method_of_the_same_name_panics() {
        let _ = Program::new().actor("clerk", || Clerk, |class| works(works(class)));
    }
}
