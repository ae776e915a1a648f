//! Names and amounts as people read them. The wire name of a Python function or class is unique: it
//! carries the module and a hash of the code. `python:module.square#1f0a` is shown as `square`.

/// Returns the short name of a function or class. A name without a Python scheme or without a hash
/// is returned as it is.
pub fn label_of(name: &str) -> &str {
    python_label(name).map_or(name, |label| {
        let is_path = label.split('.').all(|part| !part.is_empty() && part.chars().all(in_names));
        if is_path { label.rsplit('.').next().expect("at least one part") } else { label }
    })
}

/// Returns the part between the scheme (with or without an environment) and the hash.
fn python_label(name: &str) -> Option<&str> {
    let (scheme, rest) = name.split_once(':')?;
    if scheme != "python" && !scheme.starts_with("python/") {
        return None;
    }
    rest.rsplit_once('#').map(|(label, _)| label)
}

/// Returns whether a character can occur in a Python name, or in `<lambda>` and `<locals>`.
fn in_names(character: char) -> bool {
    character.is_alphanumeric() || "_<>".contains(character)
}

/// Formats a number of bytes for people.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} bytes");
    }
    let power = (bytes.ilog2() / 10).min(UNITS.len() as u32);
    let whole = bytes as f64 / f64::from(power * 10).exp2();
    let digits = usize::from(power == 3);
    format!("{whole:.digits$} {}", UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_are_printed_in_readable_units() {
        for (bytes, words) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (100 << 10, "100 KiB"),
            (5 << 20, "5 MiB"),
            (3 << 29, "1.5 GiB"),
            (2 << 40, "2048.0 GiB"),
        ] {
            assert_eq!(format_bytes(bytes), words);
        }
    }

    #[test]
    fn labels_hide_modules_and_hashes() {
        for (name, label) in [
            ("python:__main__.split#8e46", "split"),
            ("python/1f0a:package.module.Class.method#8e46", "method"),
            ("python:tests.outer.<locals>.<lambda>#1", "<lambda>"),
            ("python:nightly run no. 7#8e46", "nightly run no. 7"),
            ("python:a.#b#8e46", "a.#b"),
            ("python:math.hypot", "python:math.hypot"),
            ("command:echo", "command:echo"),
            ("pythonic:a.b#1", "pythonic:a.b#1"),
            ("square", "square"),
        ] {
            assert_eq!(label_of(name), label);
        }
    }
}
