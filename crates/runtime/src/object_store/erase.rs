//! Erases saved files, on a thread that runs only while there are files to erase. A shared folder
//! may answer late, and a thread that holds a lock must not wait for the folder.

use super::disk::{Start, start_thread};
use marline_objects::{DurableFiles, FileId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// A file to erase.
pub(super) struct FileToErase {
    pub saved: DurableFiles,
    pub name: String,
    /// Erase the file only if it is still this one.
    pub only_if: Option<FileId>,
}

/// See the [module](self).
pub(super) struct EraseQueue {
    todo: Arc<Mutex<Todo>>,
    pub(super) start: Start,
}

#[derive(Default)]
struct Todo {
    files: VecDeque<FileToErase>,
    /// Whether a thread erases files.
    is_running: bool,
}

impl Default for EraseQueue {
    fn default() -> EraseQueue {
        EraseQueue { todo: Arc::default(), start: start_thread }
    }
}

impl EraseQueue {
    /// Queues a file to be erased, in order. If no thread can be started now, the file goes with
    /// the next one.
    pub fn enqueue(&self, file: FileToErase) {
        let mut todo = lock(&self.todo);
        todo.files.push_back(file);
        if !todo.is_running {
            let files = self.todo.clone();
            todo.is_running =
                (self.start)("marline-erase", Box::new(move || erase(&files))).is_ok();
        }
    }
}

fn lock(todo: &Mutex<Todo>) -> MutexGuard<'_, Todo> {
    todo.lock().expect("nothing panics under it")
}

fn erase(todo: &Mutex<Todo>) {
    loop {
        let next = {
            let mut todo = lock(todo);
            let next = todo.files.pop_front();
            todo.is_running = next.is_some();
            next
        };
        let Some(FileToErase { saved, name, only_if }) = next else { return };
        match only_if {
            Some(file) => saved.erase_own(&name, file),
            None => saved.erase(&name),
        }
    }
}
