//! Names of users.

use std::ffi::CString;

/// Largest entry of the user database that is believed, bytes.
const MAX_ENTRY: usize = 1 << 20;

/// The uid of a user name, from wherever the system looks users up; `None` when there is none.
pub fn uid_of(name: &str) -> Result<Option<u32>, rustix::io::Errno> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut buffer = vec![0; 4096];
    loop {
        // SAFETY: all zero bytes are a passwd without strings.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends with a NUL, the buffer is as long as it says, and the entry, which
        // points into the buffer, is not used after it.
        let error = unsafe {
            let room = buffer.len();
            libc::getpwnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), room, &mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            0 => return Ok(Some(entry.pw_uid)),
            libc::ERANGE if buffer.len() < MAX_ENTRY => buffer.resize(buffer.len() * 4, 0),
            // Some user databases say "not found" in these words.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(rustix::io::Errno::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_strangers_are_not() {
        assert_eq!(uid_of("root"), Ok(Some(0)));
        assert_eq!(uid_of("no-such-user-here"), Ok(None));
        assert_eq!(uid_of(""), Ok(None));
        assert_eq!(uid_of("ro\0ot"), Ok(None));
    }
}
