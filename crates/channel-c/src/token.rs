//! Cancel tokens behind handles.

use std::ffi::c_int;

use marline_channel::CancelToken;

use crate::{
    border::{checked, enter},
    code::Code,
    table::{Object, Ref, Table},
};

/// The handle of a cancel token. Never 0. Where a function takes a token, 0 means none.
pub type TokenId = u64;

pub(crate) struct Token {
    pub(crate) cancel: CancelToken,
}

impl Object for Token {
    const ID_TAG: u64 = 2;

    fn table() -> &'static Table<Token> {
        static TOKENS: Table<Token> = Table::new();
        &TOKENS
    }
}

impl Token {
    fn of(id: TokenId) -> Result<Ref<Token>, Code> {
        Token::table().get(id).ok_or(Code::INVALID)
    }

    fn insert(cancel: CancelToken) -> Result<TokenId, Code> {
        Token::table().insert(Token { cancel }).map_err(|_| Code::NO_MEMORY)
    }
}

/// Creates a cancel token. Pass it to any number of operations. Trigger it once, and the operations
/// that wait end with ECANCELED.
///
/// EINVAL: a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_token_create(token: *mut TokenId) -> c_int {
    enter(|| {
        let token = checked(token)?;
        let id = Token::insert(CancelToken::new())?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { token.write(id) };
        Ok(())
    })
}

/// Creates a token that is triggered with its parent, and can be triggered without it. It outlives
/// its parent's handle.
///
/// EINVAL: no such parent, or a null pointer. ENOMEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_token_child(parent: TokenId, child: *mut TokenId) -> c_int {
    enter(|| {
        let child = checked(child)?;
        let id = Token::insert(Token::of(parent)?.cancel.child())?;
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { child.write(id) };
        Ok(())
    })
}

/// Triggers a token and its children, for ever. A second call does nothing.
///
/// EINVAL: no such token.
#[unsafe(no_mangle)]
pub extern "C" fn marline_token_trigger(token: TokenId) -> c_int {
    enter(|| {
        Token::of(token)?.cancel.cancel();
        Ok(())
    })
}

/// Stores in *is_set whether a token was triggered.
///
/// EINVAL: no such token, or a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn marline_token_is_set(token: TokenId, is_set: *mut bool) -> c_int {
    enter(|| {
        let is_set = checked(is_set)?;
        let cancelled = Token::of(token)?.cancel.is_cancelled();
        // SAFETY: not null and aligned; valid by the caller's promise.
        unsafe { is_set.write(cancelled) };
        Ok(())
    })
}

/// Destroys a token's handle without triggering the token. Operations that have the token keep it.
///
/// EINVAL: no such token.
#[unsafe(no_mangle)]
pub extern "C" fn marline_token_destroy(token: TokenId) -> c_int {
    enter(|| {
        Token::table().remove(token).ok_or(Code::INVALID)?;
        Ok(())
    })
}
