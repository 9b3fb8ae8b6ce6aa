//! `--name value` pairs and positional arguments.

use std::collections::HashMap;
use std::str::FromStr;

use crate::Result;

/// The arguments after the command.
pub struct Options {
    named: HashMap<String, String>,
    plain: Vec<String>,
}

impl Options {
    /// Splits the words; a `--name` without a value is an error.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { named: HashMap::new(), plain: Vec::new() };
        let mut words = words;
        while let Some(word) = words.next() {
            match word.strip_prefix("--") {
                Some(name) => {
                    let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
                    options.named.insert(name.to_owned(), value);
                }
                None => options.plain.push(word),
            }
        }
        Ok(options)
    }

    /// The value of `--name`, parsed; an error if it is missing or invalid.
    pub fn get<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.named.get(name).ok_or_else(|| format!("--{name} is missing"))?;
        text.parse().map_err(|_| format!("--{name} {text}: not a valid value"))
    }

    /// As [`get`](Self::get), with a default.
    pub fn get_or<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        if self.named.contains_key(name) { self.get(name) } else { Ok(default) }
    }

    /// The first positional argument.
    pub fn word(&self) -> Result<&str> {
        self.plain.first().map(String::as_str).ok_or_else(|| "an argument is missing".into())
    }
}
