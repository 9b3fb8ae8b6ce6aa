//! Names that are the same in every run: `P1` for a process, `A1` for a buffer, `D1` for a debug
//! id.

use std::cell::RefCell;

use crate::process::Process;

/// The names assigned so far in one case.
#[derive(Default)]
pub struct Names {
    pids: RefCell<Vec<(i32, usize)>>,
    /// (process, address): the index is the number less one.
    buffers: RefCell<Vec<(usize, u64)>>,
    mappings: RefCell<Vec<(usize, u64, u64)>>,
    debug_ids: RefCell<Vec<u32>>,
}

/// Position of `item`, which is added when it is new, counted from 1.
fn number<T: PartialEq>(items: &mut Vec<T>, item: T) -> usize {
    if let Some(at) = items.iter().position(|known| *known == item) {
        return at + 1;
    }
    items.push(item);
    items.len()
}

impl Names {
    /// Adds a process.
    pub fn add_process(&self, process: &Process) {
        self.pids.borrow_mut().push((process.pid(), process.number));
    }

    /// Adds a process's mapping of the device.
    pub fn add_mapping(&self, process: &Process, address: u64, len: u64) {
        self.mappings.borrow_mut().push((process.number, address, len));
    }

    /// Name of a buffer that the driver allocated.
    pub fn buffer(&self, process: &Process, address: u64) -> String {
        let known = number(&mut self.buffers.borrow_mut(), (process.number, address));
        let mapped = self.is_mapped(process, address);
        format!("A{known}{}", if mapped { "" } else { "(outside of the mapping)" })
    }

    /// Name of a pid that the driver reported.
    pub fn pid(&self, pid: i32) -> String {
        match self.pids.borrow().iter().rev().find(|(known, _)| *known == pid) {
            Some((_, number)) => format!("P{number}"),
            None if pid == 0 => "0".to_owned(),
            None => "somebody".to_owned(),
        }
    }

    /// Name of a debug id.
    pub fn debug_id(&self, id: u32) -> String {
        match id {
            0 => "0".to_owned(),
            id => format!("D{}", number(&mut self.debug_ids.borrow_mut(), id)),
        }
    }

    /// Any address: relative to a known buffer, to a mapping, or to the memory of the script.
    pub fn address(&self, process: &Process, address: u64) -> String {
        let buffers = self.buffers.borrow();
        if let Some(at) = buffers.iter().position(|known| *known == (process.number, address)) {
            return format!("A{}", at + 1);
        }
        if let Some(at) = buffers.iter().position(|(_, known)| *known == address) {
            return format!("A{} of another process", at + 1);
        }
        if let Some(text) = self.near_mapping(process, address) {
            return text;
        }
        match process.arena_of(address) {
            Some(arena) if arena.guard() == address => "unmapped".to_owned(),
            Some(_) => "memory".to_owned(),
            None => format!("{address:#x}"),
        }
    }

    /// Relative to the mapping, for addresses in it and just outside of it.
    fn near_mapping(&self, process: &Process, address: u64) -> Option<String> {
        const NEAR: u64 = 4096;
        let mappings = self.mappings.borrow();
        let (_, start, _) = mappings.iter().find(|(owner, start, len)| {
            *owner == process.number && address.wrapping_sub(start - NEAR) <= len + NEAR
        })?;
        Some(match address.checked_sub(*start) {
            Some(offset) => format!("mapping+{offset:#x}"),
            None => format!("mapping-{:#x}", start - address),
        })
    }

    /// Whether an address lies in a mapping of the device.
    pub fn is_mapped(&self, process: &Process, address: u64) -> bool {
        self.mappings.borrow().iter().any(|(owner, start, len)| {
            *owner == process.number && address.wrapping_sub(*start) < *len
        })
    }

    /// Name of an address inside of the buffer at `base`: `A1+16`; any other address is unchanged.
    pub fn inside(&self, process: &Process, base: u64, address: u64) -> String {
        match address.checked_sub(base) {
            Some(offset) if base != 0 && self.is_mapped(process, base) && offset < 8 << 20 => {
                format!("+{offset}")
            }
            _ => self.address(process, address),
        }
    }
}
