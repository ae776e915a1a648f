//! `select!` for tasks and `select_blocking!` for threads. They have bodies instead of handlers: a
//! body can `return`, `break`, use `?` and borrow freely. Both expand to the typed select.

/// Waits, in async code, for the first of several clauses and runs its body.
///
/// Each clause is `pattern = operation => body`. Options come before the clauses: `biased;`,
/// `skip_closed;`, `timeout(duration);`, `deadline(instant);` and `cancel(&token);`. An
/// `else error => body` at the end runs if no clause happened: the select's own deadline passed,
/// its token was triggered, or (with `skip_closed`) all channels are closed. Without an `else` the
/// macro panics then.
///
/// ```
/// use marline_channel::{bounded, select, unbounded};
/// # futures_executor::block_on(async {
/// let (tx, rx) = unbounded();
/// let (logs, _) = bounded::<String>(1);
/// tx.try_send(5).unwrap();
/// let doubled = select! {
///     biased;
///     number = rx.recv() => number.unwrap() * 2,
///     sent = logs.send("idle".to_string()) => { drop(sent); 0 }
/// };
/// assert_eq!(doubled, 10);
/// # });
/// ```
#[macro_export]
macro_rules! select {
    ($($tokens:tt)*) => { $crate::__select!(@parse await [] [] $($tokens)*) };
}

/// Waits, blocking this thread, for the first of several clauses and runs its body. Otherwise it is
/// like [`select!`](crate::select!).
///
/// ```
/// use marline_channel::{ErrorKind, rendezvous, select_blocking};
/// use std::time::Duration;
/// let (_tx, rx) = rendezvous::<u32>();
/// let what = select_blocking! {
///     timeout(Duration::from_millis(1));
///     number = rx.recv() => format!("{number:?}"),
///     else error => format!("{:?}", error.kind()),
/// };
/// assert_eq!(what, "Timeout");
/// ```
#[macro_export]
macro_rules! select_blocking {
    ($($tokens:tt)*) => { $crate::__select!(@parse wait [] [] $($tokens)*) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    // Options.
    (@parse $end:tt [$($option:tt)*] [] biased; $($rest:tt)*) => {
        $crate::__select!(@parse $end [$($option)* .biased()] [] $($rest)*)
    };
    (@parse $end:tt [$($option:tt)*] [] skip_closed; $($rest:tt)*) => {
        $crate::__select!(@parse $end [$($option)* .skip_closed()] [] $($rest)*)
    };
    (@parse $end:tt [$($option:tt)*] [] timeout($time:expr); $($rest:tt)*) => {
        $crate::__select!(@parse $end [$($option)* .timeout($time)] [] $($rest)*)
    };
    (@parse $end:tt [$($option:tt)*] [] deadline($time:expr); $($rest:tt)*) => {
        $crate::__select!(@parse $end [$($option)* .deadline($time)] [] $($rest)*)
    };
    (@parse $end:tt [$($option:tt)*] [] cancel($token:expr); $($rest:tt)*) => {
        $crate::__select!(@parse $end [$($option)* .cancel($token)] [] $($rest)*)
    };
    // The end.
    (@parse $end:tt $options:tt $clauses:tt else $error:pat => $body:expr $(,)?) => {
        $crate::__select!(@emit $end $options $clauses $error => $body)
    };
    (@parse $end:tt $options:tt $clauses:tt) => {
        $crate::__select!(@emit $end $options $clauses error => {
            ::core::panic!("no clause of the select happened ({error}): add an `else error => …` arm")
        })
    };
    // Clauses. Each `output` is a different identifier, because it comes from another expansion.
    (@parse $end:tt $options:tt [$($clause:tt)*] $result:pat = $op:expr => $body:block $(,)? $($rest:tt)*) => {
        $crate::__select!(@parse $end $options [$($clause)* (output $result, $op, $body)] $($rest)*)
    };
    (@parse $end:tt $options:tt [$($clause:tt)*] $result:pat = $op:expr => $body:expr, $($rest:tt)*) => {
        $crate::__select!(@parse $end $options [$($clause)* (output $result, $op, $body)] $($rest)*)
    };
    (@parse $end:tt $options:tt [$($clause:tt)*] $result:pat = $op:expr => $body:expr) => {
        $crate::__select!(@parse $end $options [$($clause)* (output $result, $op, $body)])
    };
    (@emit $end:tt [$($option:tt)*] [$(($output:ident $result:pat, $op:expr, $body:expr))*] $error:pat => $otherwise:expr) => {{
        $(let mut $output = ::core::option::Option::None;)*
        let ended = {
            let select = $crate::Select::new()
                $(.on($op, |result| $output = ::core::option::Option::Some(result)))*
                $($option)*;
            $crate::__select!(@end $end select)
        };
        match ended {
            ::core::result::Result::Err($error) => $otherwise,
            ::core::result::Result::Ok(()) => {
                $(if let ::core::option::Option::Some(result) = $output.take() {
                    let $result = result;
                    $body
                } else)* {
                    ::core::unreachable!("a select that ended has a result")
                }
            }
        }
    }};
    (@end await $select:ident) => { $select.await };
    (@end wait $select:ident) => { $select.wait() };
}
