//! `suite_service NAME`: registers with the service manager and echoes all values, until a client
//! stops it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use rsbinder::{
    BinderResult, ExceptionCode, Interface, ParcelFileDescriptor, ProcessState, SIBinder, Status,
    StatusCode, Strong, hub, thread_state::CallingContext,
};
use suite::headroom::suite::{
    Holder::Holder, ICallback::ICallback, INamed::BnNamed, INamed::INamed, ISuite::BnSuite,
    ISuite::ISuite, Large::Large, Medium::Medium, Point::Point, Small::Small, Value::Value,
};

struct Named(String);

impl Interface for Named {}

impl INamed for Named {
    fn name(&self) -> BinderResult<String> {
        Ok(self.0.clone())
    }
}

#[derive(Default)]
struct Suite {
    callback: Mutex<Option<Strong<dyn ICallback>>>,
}

impl Interface for Suite {}

macro_rules! echo {
    ($($name:ident $ty:ty),* $(,)?) => {
        $(fn $name(&self, value: $ty) -> BinderResult<$ty> { Ok(value) })*
    };
}
macro_rules! echo_ref {
    ($($name:ident $ty:ty),* $(,)?) => {
        $(fn $name(&self, value: &$ty) -> BinderResult<$ty> { Ok(value.clone()) })*
    };
}
macro_rules! reverse {
    ($($name:ident $ty:ty),* $(,)?) => {
        $(fn $name(&self, values: &[$ty]) -> BinderResult<Vec<$ty>> {
            Ok(values.iter().rev().cloned().collect())
        })*
    };
}

fn refused(error: std::io::Error) -> Status {
    Status::new_service_specific_error(error.raw_os_error().unwrap_or(-1), Some(error.to_string()))
}

impl ISuite for Suite {
    echo! {
        echoBoolean bool, echoByte i8, echoChar u16, echoInt i32, echoLong i64, echoFloat f32,
        echoDouble f64, echoSmall Small, echoMedium Medium, echoLarge Large,
    }
    echo_ref! { echoPoint Point, echoBinder SIBinder, echoNamed Strong<dyn INamed> }
    reverse! {
        reverseBoolean bool, reverseByte u8, reverseChar u16, reverseInt i32, reverseLong i64,
        reverseFloat f32, reverseDouble f64, reverseString String, reverseSmall Small,
        reverseMedium Medium, reverseLarge Large, reversePoint Point, reverseValue Value,
        reverseNamed Strong<dyn INamed>, reverseList String,
    }

    fn echoValue(&self, value: &Value) -> BinderResult<Value> {
        Ok(value.clone())
    }

    fn echoHolder(&self, value: &Holder) -> BinderResult<Holder> {
        let mut echoed = Holder { before: value.before, after: value.after, ..Holder::default() };
        if let Some(point) = value.extension.get_parcelable::<Point>()? {
            echoed.extension.set_parcelable(point)?;
        }
        Ok(echoed)
    }

    fn echoString(&self, value: &str) -> BinderResult<String> {
        Ok(value.to_owned())
    }

    fn echoFile(&self, value: &ParcelFileDescriptor) -> BinderResult<ParcelFileDescriptor> {
        Ok(value.try_clone()?)
    }

    fn maybeString(&self, value: Option<&str>) -> BinderResult<Option<String>> {
        Ok(value.map(str::to_owned))
    }

    fn maybeInts(&self, values: Option<&[i32]>) -> BinderResult<Option<Vec<i32>>> {
        Ok(values.map(<[i32]>::to_vec))
    }

    fn maybeStrings(
        &self,
        values: Option<&[Option<String>]>,
    ) -> BinderResult<Option<Vec<Option<String>>>> {
        Ok(values.map(<[Option<String>]>::to_vec))
    }

    fn maybePoint(&self, value: Option<&Point>) -> BinderResult<Option<Point>> {
        Ok(value.cloned())
    }

    fn maybeNamed(
        &self,
        value: Option<&Strong<dyn INamed>>,
    ) -> BinderResult<Option<Strong<dyn INamed>>> {
        Ok(value.cloned())
    }

    fn twice(&self, values: &[i32], copy: &mut Vec<i32>) -> BinderResult<Vec<i32>> {
        *copy = values.to_vec();
        Ok(values.to_vec())
    }

    fn r#move(&self, point: &mut Point, by: i32) -> BinderResult<()> {
        point.x += by;
        Ok(())
    }

    fn fill(&self, point: &mut Point) -> BinderResult<()> {
        point.name = "filled".into();
        Ok(())
    }

    fn named(&self, name: &str) -> BinderResult<Strong<dyn INamed>> {
        Ok(BnNamed::new_binder(Named(name.to_owned())))
    }

    fn bounce(&self, callback: &Strong<dyn ICallback>, times: i32) -> BinderResult<i32> {
        if times == 0 {
            return Ok(0);
        }
        let own = BnSuite::new_binder(Suite::default());
        Ok(callback.bounce(&own, times - 1)? + 1)
    }

    fn readFrom(&self, file: &ParcelFileDescriptor, content: &mut Vec<u8>) -> BinderResult<()> {
        let mut file = File::from(OwnedFd::from(file.try_clone()?));
        file.read_to_end(content).map_err(refused)?;
        Ok(())
    }

    fn pipeWith(&self, content: &str) -> BinderResult<ParcelFileDescriptor> {
        let (read, mut write) = std::io::pipe().map_err(refused)?;
        write.write_all(content.as_bytes()).map_err(refused)?;
        Ok(ParcelFileDescriptor::new(OwnedFd::from(read)))
    }

    fn failWithCode(&self, code: i32) -> BinderResult<()> {
        Err(Status::new_service_specific_error(code, Some("as requested".into())))
    }

    fn failWithException(&self, code: i32) -> BinderResult<()> {
        let code = match code {
            -1 => ExceptionCode::Security,
            -3 => ExceptionCode::IllegalArgument,
            -4 => ExceptionCode::NullPointer,
            -5 => ExceptionCode::IllegalState,
            _ => ExceptionCode::UnsupportedOperation,
        };
        Err((code, "as requested").into())
    }

    fn failWithStatus(&self, status: i32) -> BinderResult<()> {
        Err(if status == 0 { StatusCode::PermissionDenied } else { StatusCode::BadValue }.into())
    }

    fn subscribe(&self, callback: &Strong<dyn ICallback>) -> BinderResult<()> {
        *self.callback.lock().unwrap() = Some(callback.clone());
        Ok(())
    }

    fn notifyAll(&self, number: i32) -> BinderResult<()> {
        match &*self.callback.lock().unwrap() {
            Some(callback) => callback.received(number),
            None => Ok(()),
        }
    }

    fn callerPid(&self) -> BinderResult<i32> {
        Ok(CallingContext::default().pid)
    }

    fn callerUid(&self) -> BinderResult<i32> {
        Ok(CallingContext::default().uid as i32)
    }

    fn sleep(&self, milliseconds: i32) -> BinderResult<()> {
        std::thread::sleep(Duration::from_millis(milliseconds as u64));
        Ok(())
    }

    fn die(&self) -> BinderResult<()> {
        std::process::exit(0);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("suite_service NAME")?;
    ProcessState::init_default()?;
    ProcessState::start_thread_pool();
    hub::add_service(&name, BnSuite::new_binder(Suite::default()))?;
    println!("serving {name}");
    ProcessState::join_thread_pool()?;
    Ok(())
}
