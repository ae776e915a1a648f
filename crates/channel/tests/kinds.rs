//! Tests that the seven kinds do what docs/channels.md says: its table cell by cell, its examples
//! word for word, and the sentences around the table.

mod conformance;

#[path = "conformance/kinds/batches.rs"]
mod batches;
#[path = "conformance/kinds/broadcasts.rs"]
mod broadcasts;
#[path = "conformance/kinds/ends.rs"]
mod ends;
#[path = "conformance/kinds/examples.rs"]
mod examples;
#[path = "conformance/kinds/iteration.rs"]
mod iteration;
#[path = "conformance/kinds/oneshots.rs"]
mod oneshots;
#[path = "conformance/kinds/page.rs"]
mod page;
#[path = "conformance/kinds/permits.rs"]
mod permits;
#[path = "conformance/kinds/table.rs"]
mod table;
#[path = "conformance/kinds/values.rs"]
mod values;
#[path = "conformance/kinds/watches.rs"]
mod watches;
