//! The shipped binary, used as people and scripts use it: each test has a runtime folder of its own, and
//! ends the processes that it started.

mod cluster;
mod harness;
mod joining;
mod look;
mod neighbours;
mod output;
mod python;
mod run;
mod safety;
mod settings;
mod signals;
