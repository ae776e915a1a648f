//! What functions and classes are called by people. Those of Python have names that no other has, with their
//! module and a hash of their code: `python:module.square#1f0a` is `square`.

/// What a function or class is called by people; what is not of Python is called by its name.
pub fn label_of(name: &str) -> &str {
    python_label(name).map_or(name, |label| {
        let is_path = label.split('.').all(|part| !part.is_empty() && part.chars().all(in_names));
        if is_path { label.rsplit('.').next().expect("there is one") } else { label }
    })
}

/// What stands between the scheme, with or without an environment, and the hash.
fn python_label(name: &str) -> Option<&str> {
    let (scheme, rest) = name.split_once(':')?;
    if scheme != "python" && !scheme.starts_with("python/") {
        return None;
    }
    rest.rsplit_once('#').map(|(label, _)| label)
}

/// Whether a character can be in a name of Python, or in `<lambda>` and `<locals>`.
fn in_names(character: char) -> bool {
    character.is_alphanumeric() || "_<>".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_do_not_see_modules_and_hashes() {
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
