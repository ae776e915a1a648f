//! Tests of the shipped binary, used as people and scripts use it. Each test has a runtime folder
//! of its own, and ends the processes that it started.

mod cluster;
mod harness;
mod joining;
mod log;
mod output;
mod python;
mod queries;
mod run;
mod safety;
mod settings;
mod signals;
mod user_programs;
