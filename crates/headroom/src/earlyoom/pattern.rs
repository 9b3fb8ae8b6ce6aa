//! Regular expressions as earlyoom understands them: POSIX extended ones, of the C library.

use std::ffi::CString;
use std::fmt;
use std::mem::MaybeUninit;

/// A compiled expression.
pub struct Pattern {
    // In a place of its own: the C library may keep addresses of its parts.
    compiled: Box<libc::regex_t>,
    text: String,
}

impl Pattern {
    /// Compiles it; the error is the C library's word.
    pub fn new(text: &str) -> Result<Self, String> {
        let source = CString::new(text).map_err(|_| "it has a NUL in it".to_owned())?;
        let mut compiled = Box::new(MaybeUninit::<libc::regex_t>::uninit());
        let flags = libc::REG_EXTENDED | libc::REG_NOSUB;
        // SAFETY: room for a regex_t, and a text that ends with a NUL.
        let error = unsafe { libc::regcomp(compiled.as_mut_ptr(), source.as_ptr(), flags) };
        if error != 0 {
            let mut words = [0u8; 128];
            // SAFETY: regerror writes at most as many bytes as it is told, the NUL included, and reads of
            // the failed expression what regcomp has left there for it.
            unsafe {
                libc::regerror(error, compiled.as_ptr(), words.as_mut_ptr().cast(), words.len());
            }
            let end = words.iter().position(|byte| *byte == 0).unwrap_or(words.len());
            return Err(String::from_utf8_lossy(&words[..end]).into_owned());
        }
        // SAFETY: regcomp has succeeded, so it is initialised; the box keeps its place.
        let compiled = unsafe { Box::from_raw(Box::into_raw(compiled).cast::<libc::regex_t>()) };
        Ok(Self { compiled, text: text.to_owned() })
    }

    /// It is somewhere in the text.
    pub fn matches(&self, text: &str) -> bool {
        let Ok(text) = CString::new(text) else { return false };
        // SAFETY: a compiled expression, a text that ends with a NUL, and no matches are asked for.
        unsafe { libc::regexec(&*self.compiled, text.as_ptr(), 0, std::ptr::null_mut(), 0) == 0 }
    }
}

impl Drop for Pattern {
    fn drop(&mut self) {
        // SAFETY: compiled by regcomp, freed once.
        unsafe { libc::regfree(&mut *self.compiled) };
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_those_of_the_c_library() {
        let browsers = Pattern::new("^(chrom.*|firefox)$").unwrap();
        assert!(browsers.matches("chromium") && browsers.matches("firefox"));
        assert!(!browsers.matches("firefox-bin"));
        assert!(Pattern::new("[[:digit:]]{2}").unwrap().matches("a42"));
        assert!(Pattern::new("(").err().is_some_and(|error| !error.is_empty()));
    }
}
