//! `hello_service [NAME]`: registers with the service manager and serves until a client stops it.

use std::sync::Mutex;

use hello::headroom::hello::IHello::{BnHello, IHello};
use hello::headroom::hello::IHelloListener::IHelloListener;
use rsbinder::{BinderResult, ExceptionCode, Interface, ProcessState, Strong, hub};

type Listener = Strong<dyn IHelloListener>;

#[derive(Default)]
struct Hello {
    listener: Mutex<Option<Listener>>,
}

impl Interface for Hello {}

impl IHello for Hello {
    fn echo(&self, text: &str) -> BinderResult<String> {
        if text.is_empty() {
            return Err((ExceptionCode::IllegalArgument, "empty text").into());
        }
        Ok(text.to_owned())
    }

    fn repeat(&self, data: &[u8], times: i32) -> BinderResult<Vec<u8>> {
        Ok(data.repeat(usize::try_from(times).unwrap_or(0)))
    }

    fn query(&self, listener: &Listener, question: i32) -> BinderResult<i32> {
        listener.answer(question)
    }

    fn subscribe(&self, listener: &Listener) -> BinderResult<()> {
        *self.listener.lock().unwrap() = Some(listener.clone());
        Ok(())
    }

    fn notify(&self, number: i32) -> BinderResult<()> {
        match &*self.listener.lock().unwrap() {
            Some(listener) => listener.received(number),
            None => Ok(()),
        }
    }

    fn die(&self) -> BinderResult<()> {
        std::process::exit(0);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| hello::SERVICE.to_owned());
    ProcessState::init_default()?;
    ProcessState::start_thread_pool();
    hub::add_service(&name, BnHello::new_binder(Hello::default()))?;
    println!("serving {name}");
    ProcessState::join_thread_pool()?;
    Ok(())
}
