//! `/proc/<pid>/ns/user`.

use owners::reader;

use super::Proc;
use machine_memory::ReadError;
use memory_ledger::Uid;

impl Proc {
    /// The creator of the outermost user namespace of the process below the reader's own; `None`:
    /// the process is in the reader's own.
    pub fn namespace_owner(&self, pid: u32) -> Result<Option<Uid>, ReadError> {
        let levels = reader::namespaces(&self.root, pid).map_err(|error| {
            ReadError::io(&self.root.join(pid.to_string()).join("ns/user"), error)
        })?;
        Ok(levels.last().map(|outermost| outermost.creator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_in_our_own_namespace() {
        assert_eq!(Proc::default().namespace_owner(std::process::id()).unwrap(), None);
        assert!(Proc::default().namespace_owner(u32::MAX / 2).unwrap_err().is_gone());
    }
}
