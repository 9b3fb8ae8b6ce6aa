//! What all processes of one user may have together, so that nobody can use up the driver by
//! starting more of them.

use owners::Uid;

use crate::driver::Driver;
use crate::errno::Errno;
use crate::keys::{ProcessId, UserId};
use crate::limits::{MAX_OBJECTS_OF_A_USER, MAX_OPENS_OF_A_USER};
use crate::process::types::User;

impl Driver {
    /// One more open of this user. `EMFILE`: it has too many.
    pub(crate) fn admit_open(&mut self, uid: Uid) -> Result<UserId, Errno> {
        let users = &mut self.users;
        let new = || users.insert(User { uid, ..User::default() });
        let id = *self.users_by_uid.entry(uid).or_insert_with(new);
        let user = &mut self.users[id];
        if user.opens >= MAX_OPENS_OF_A_USER {
            return Err(Errno::EMFILE);
        }
        user.opens += 1;
        Ok(id)
    }

    /// An open of the user is gone, with all its objects.
    pub(crate) fn leave_user(&mut self, id: UserId) {
        let user = &mut self.users[id];
        user.opens -= 1;
        if user.opens == 0 {
            self.users_by_uid.remove(&user.uid);
            self.users.remove(id);
        }
    }

    /// One more object of the process's user. `ENOMEM`: it has too many.
    pub(crate) fn charge_object(&mut self, process: ProcessId) -> Result<(), Errno> {
        let user = &mut self.users[self.processes[process].user];
        if user.objects >= MAX_OBJECTS_OF_A_USER {
            return Err(Errno::ENOMEM);
        }
        user.objects += 1;
        Ok(())
    }

    /// An object of the process is gone.
    pub(crate) fn discharge_object(&mut self, process: ProcessId) {
        self.users[self.processes[process].user].objects -= 1;
    }
}
