//! Functions, constructors and methods of any number of arguments, seen as one kind of thing.

use crate::codec::{Decoder, encode};
use marline_runtime::Invocation;
use marline_runtime::core::error::{Error, Failure};
use marline_runtime::core::payload::Payload;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// A function that can be called by name: up to eight arguments that `serde` can read.
pub trait Function<Args>: Send + Sync + 'static {
    /// What it returns.
    type Output;
    #[doc(hidden)]
    fn invoke(&self, invocation: &Invocation) -> Result<Self::Output, Error>;
}

/// A function that makes an actor.
pub trait Constructor<T, Args>: Function<Args, Output = T> {}
impl<T, Args, F: Function<Args, Output = T>> Constructor<T, Args> for F {}

/// A method of an actor: it may change the actor.
pub trait Method<T, Args>: Send + Sync + 'static {
    /// What it returns.
    type Output;
    #[doc(hidden)]
    fn invoke(&self, actor: &mut T, invocation: &Invocation) -> Result<Self::Output, Error>;
}

macro_rules! functions {
    ($($name:ident)*) => {
        impl<Code, Output, $($name: DeserializeOwned),*> Function<($($name,)*)> for Code
        where
            Code: Fn($($name),*) -> Output + Send + Sync + 'static,
        {
            type Output = Output;
            #[allow(non_snake_case)]
            fn invoke(&self, invocation: &Invocation) -> Result<Output, Error> {
                #[allow(unused_mut)]
                let mut decoder = Decoder::new(&invocation.args, &invocation.values)?;
                $(let $name = decoder.next::<$name>()?;)*
                decoder.finish()?;
                Ok(self($($name),*))
            }
        }

        impl<Actor, Code, Output, $($name: DeserializeOwned),*> Method<Actor, ($($name,)*)> for Code
        where
            Code: Fn(&mut Actor, $($name),*) -> Output + Send + Sync + 'static,
        {
            type Output = Output;
            #[allow(non_snake_case)]
            fn invoke(&self, actor: &mut Actor, invocation: &Invocation) -> Result<Output, Error> {
                #[allow(unused_mut)]
                let mut decoder = Decoder::new(&invocation.args, &invocation.values)?;
                $(let $name = decoder.next::<$name>()?;)*
                decoder.finish()?;
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

/// A plain result, encoded.
pub(crate) fn plain<T: Serialize>(value: T) -> Result<Payload, Error> {
    encode(&value)
}

/// A result that may be an error of the user's own.
pub(crate) fn fallible<T: Serialize, E: Display>(value: Result<T, E>) -> Result<Payload, Error> {
    match value {
        Ok(value) => encode(&value),
        Err(error) => Err(own_error(&error)),
    }
}

/// An error of the user's own.
pub(crate) fn own_error<E: Display>(error: &E) -> Error {
    let class = std::any::type_name::<E>().to_owned();
    Error::failed(error.to_string(), Failure { class, ..Failure::default() })
}
