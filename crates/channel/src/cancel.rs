//! Cancel tokens: flags that operations can wait for.
//!
//! Triggering a token is final, and triggers its children. A child keeps its parent alive. A token
//! has weak references to its children, and sweeps out the dead ones as their number grows.

use std::{
    fmt,
    sync::{Arc, Weak},
    task::Waker,
};

use crate::{
    lock::Lock,
    sync::{AtomicBool, Ordering, broken},
    wakers::{WakeList, WakeNode, leave, register, wake_all},
};

/// Ends operations from outside: pass it to any operation with `.cancel(&token)`.
///
/// ```
/// use marline_channel::{CancelToken, ErrorKind, rendezvous};
/// let token = CancelToken::new();
/// let child = token.child();
/// token.cancel();
/// assert!(child.is_cancelled());
/// let (tx, _rx) = rendezvous();
/// let error = tx.send("hello").cancel(&child).wait().unwrap_err();
/// assert_eq!((error.kind(), error.into_inner()), (ErrorKind::Cancelled, "hello"));
/// ```
#[derive(Clone)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

struct Inner {
    cancelled: AtomicBool,
    state: Lock<State>,
    parent: Option<Arc<Inner>>,
}

struct State {
    waiting: WakeList,
    children: Vec<Weak<Inner>>,
    /// How many children there may be before the dead ones are swept out.
    sweep_at: usize,
}

/// The number of children at which the first sweep happens.
const FIRST_SWEEP: usize = 16;

impl CancelToken {
    /// Creates a token without a parent.
    ///
    /// ```
    /// use marline_channel::CancelToken;
    /// let token = CancelToken::new();
    /// assert!(!token.is_cancelled());
    /// token.cancel();
    /// assert!(token.is_cancelled());
    /// ```
    pub fn new() -> CancelToken {
        CancelToken { inner: Arc::new(Inner::new(None)) }
    }

    /// Creates a token that is triggered with this one, and can be triggered without it.
    ///
    /// ```
    /// use marline_channel::CancelToken;
    /// let request = CancelToken::new();
    /// let (first, second) = (request.child(), request.child());
    /// first.cancel(); // only this one
    /// assert!(!second.is_cancelled() && !request.is_cancelled());
    /// request.cancel(); // and all below
    /// assert!(second.is_cancelled());
    /// ```
    pub fn child(&self) -> CancelToken {
        let child = Arc::new(Inner::new(Some(self.inner.clone())));
        let mut state = self.inner.state.lock();
        if state.children.len() >= state.sweep_at {
            state.children.retain(|child| child.strong_count() > 0);
            state.sweep_at = (state.children.len() * 2).max(FIRST_SWEEP);
        }
        state.children.push(Arc::downgrade(&child));
        drop(state);
        // Checked after the child is listed: either this sees the flag, or `cancel` sees the child.
        if self.is_cancelled() {
            child.cancel();
        }
        CancelToken { inner: child }
    }

    /// Triggers this token, its children and theirs. A second call does nothing.
    ///
    /// ```
    /// use marline_channel::CancelToken;
    /// let token = CancelToken::new();
    /// assert!(!token.is_cancelled());
    /// token.cancel();
    /// assert!(token.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        self.inner.cancel();
    }

    /// Whether the token was triggered.
    ///
    /// ```
    /// use marline_channel::CancelToken;
    /// let token = CancelToken::new();
    /// assert!(!token.is_cancelled());
    /// token.cancel();
    /// assert!(token.is_cancelled());
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::Acquire)
    }

    /// Registers `waker` to be woken when the token is triggered. Returns false if it was triggered
    /// already.
    ///
    /// # Safety
    /// The node is pinned. The caller calls [`CancelToken::forget`] before it drops the node.
    pub(crate) unsafe fn register(&self, node: &WakeNode, waker: &Waker) -> bool {
        // Checked under the lock: `cancel` sets the flag before it takes the lock to wake.
        let ready = |_: &State| self.is_cancelled() && !broken("cancel-looks-under-lock");
        // SAFETY: the caller's promise.
        !unsafe { register(&self.inner.state, |state| &mut state.waiting, node, waker, ready) }
    }

    pub(crate) fn forget(&self, node: &WakeNode) {
        // SAFETY: a node registers with one token only.
        unsafe { leave(&self.inner.state, |state| &mut state.waiting, node) };
    }
}

impl Inner {
    fn new(parent: Option<Arc<Inner>>) -> Inner {
        let state = State { waiting: WakeList::new(), children: Vec::new(), sweep_at: FIRST_SWEEP };
        Inner { cancelled: AtomicBool::new(false), state: Lock::new(state), parent }
    }

    fn cancel(&self) {
        if self.cancelled.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut below = vec![];
        let mut children = std::mem::take(&mut self.state.lock().children);
        // A loop instead of recursion: a chain of tokens may be long.
        while let Some(child) = children.pop() {
            if let Some(child) = child.upgrade()
                && !child.cancelled.swap(true, Ordering::AcqRel)
            {
                children.append(&mut child.state.lock().children);
                below.push(child);
            }
        }
        let mut panics = crate::panics::FirstPanic::default();
        panics.run(|| wake_all(&self.state, |state| &mut state.waiting));
        for child in &below {
            panics.run(|| wake_all(&child.state, |state| &mut state.waiting));
        }
        panics.resume();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A long chain of parents must not be dropped by recursion either.
        let mut parent = self.parent.take();
        while let Some(mut inner) = parent.and_then(Arc::into_inner) {
            parent = inner.parent.take();
        }
    }
}

impl Default for CancelToken {
    fn default() -> CancelToken {
        CancelToken::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("is_cancelled", &self.is_cancelled()).finish()
    }
}
