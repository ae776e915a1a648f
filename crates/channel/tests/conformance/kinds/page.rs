//! Reads docs/channels.md: its table of semantics and its examples.

const PAGE: &str = include_str!("../../../../../docs/channels.md");

/// One cell of the table: the result of an operation on a kind in a state.
#[derive(Clone, Debug)]
pub struct Cell {
    pub operation: &'static str,
    pub kind: &'static str,
    pub state: &'static str,
    pub result: &'static str,
}

fn columns(line: &'static str) -> Vec<&'static str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns the cells of the table under "What happens when".
pub fn cells() -> Vec<Cell> {
    let (_, section) = PAGE.split_once("\n## What happens when\n").expect("the section is there");
    let mut table = section.lines().skip_while(|line| !line.starts_with("| operation"));
    let header = columns(table.next().expect("the table is there"));
    let mut cells = vec![];
    for line in table.skip(1).take_while(|line| line.starts_with('|')) {
        let row = columns(line);
        assert_eq!(row.len(), header.len(), "{line}");
        for operation in row[0].split(", ") {
            for kind in row[1].split(", ") {
                for (state, result) in header.iter().zip(&row).skip(2) {
                    cells.push(Cell { operation, kind, state, result });
                }
            }
        }
    }
    cells
}

/// Returns the limit of `what` in the table of limits, up to a comma or bracket.
pub fn limit(what: &str) -> &'static str {
    let (_, section) = PAGE.split_once("\n## Limits\n").expect("the section is there");
    let row = section.lines().map(columns).find(|row| row[0] == what);
    row.expect("the limit is there")[1].split([',', '(']).next().expect("it says something")
}

/// Returns the lines of each Rust example.
pub fn examples() -> Vec<Vec<&'static str>> {
    let mut blocks = vec![];
    let mut lines = PAGE.lines();
    while lines.any(|line| line == "```rust") {
        blocks.push(lines.by_ref().take_while(|line| *line != "```").collect());
    }
    blocks
}
