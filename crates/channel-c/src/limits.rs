//! The limits of a wait: `timeout_ms` and a cancel token, which every blocking function takes.

use std::time::{Duration, Instant};

use marline_channel::{Action, Op};

use crate::{
    code::Code,
    table::{Object as _, Ref},
    token::{Token, TokenId},
};

/// How long to wait, as `timeout_ms` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Try,
    Forever,
    For(Duration),
}

impl Wait {
    #[inline(always)]
    pub(crate) fn of(timeout_ms: i64) -> Wait {
        match u64::try_from(timeout_ms) {
            Err(_) => Wait::Forever,
            Ok(0) => Wait::Try,
            Ok(milliseconds) => Wait::For(Duration::from_millis(milliseconds)),
        }
    }

    /// Returns when the wait is over. None without a time limit, and if the time is too far away
    /// for an [`Instant`].
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Wait::Try | Wait::Forever => None,
            Wait::For(time) => Instant::now().checked_add(time),
        }
    }
}

pub(crate) struct Limits {
    pub(crate) wait: Wait,
    pub(crate) token: Option<Ref<Token>>,
}

impl Limits {
    pub(crate) const NONE: Limits = Limits { wait: Wait::Forever, token: None };

    /// Returns the limits of a call. A token of 0 means none.
    #[inline(always)]
    pub(crate) fn of(timeout_ms: i64, token: TokenId) -> Result<Limits, Code> {
        let token = match token {
            0 => None,
            id => Some(Token::table().get(id).ok_or(Code::INVALID)?),
        };
        Ok(Limits { wait: Wait::of(timeout_ms), token })
    }

    /// Whether there are no limits to put on an operation.
    #[inline(always)]
    pub(crate) fn are_none(&self) -> bool {
        self.wait == Wait::Forever && self.token.is_none()
    }

    /// Puts the limits on an operation that may wait.
    #[cold]
    pub(crate) fn put_on<A: Action>(&self, mut op: Op<A>) -> Op<A> {
        if let Wait::For(time) = self.wait {
            op = op.timeout(time);
        }
        match &self.token {
            None => op,
            Some(token) => op.cancel(&token.cancel),
        }
    }

    /// Fails with ECANCELED if the token was triggered, which ends an attempt before it begins.
    #[inline(always)]
    pub(crate) fn check_cancelled(&self) -> Result<(), Code> {
        match &self.token {
            Some(token) if token.cancel.is_cancelled() => Err(Code::CANCELLED),
            _ => Ok(()),
        }
    }
}
