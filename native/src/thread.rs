//! The front end's thread: what it serves, and how it starts, sleeps and ends.

use crate::h2::service::Service;
use crate::handover::mailbox::Event;
use crate::listen::listener::{self, ListeningSocket, Reception};
use crate::measure::clock::Alarm;
use crate::measure::statistics::Count;
use crate::resources::Resources;
use std::future::poll_fn;
use std::io::Result;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// The thread that serves; dropping it closes the front end.
pub(crate) struct ServerThread {
    resources: Arc<Resources>,
    closing: Arc<AtomicBool>,
    runtime: Handle,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Accepts gRPC from here on.
    pub(crate) fn start(
        runtime: Runtime,
        service: Arc<Service>,
        listeners: Vec<ListeningSocket>,
    ) -> Result<Self> {
        let resources = service.resources.clone();
        let closing = Arc::new(AtomicBool::new(false));
        let entered = runtime.enter();
        for bound in listeners {
            tokio::spawn(listener::accept(service.clone(), bound)?);
        }
        if resources.direct.is_attached() {
            tokio::spawn(notify(resources.clone(), Alarm::new()?));
        }
        drop(entered);
        let handle = runtime.handle().clone();
        let (served, closes) = (resources.clone(), closing.clone());
        let thread = std::thread::Builder::new().name("front end".into()).spawn(move || {
            block_signals();
            // What can be caught was caught in its task; this is the last resort: say so instead of falling silent.
            if std::panic::catch_unwind(AssertUnwindSafe(|| serve(&served, &closes, runtime))).is_err() {
                served.statistics.count(Count::Panics);
                served
                    .link
                    .mailbox
                    .fail("the front end's thread has failed; nothing is served any more".into());
            }
        })?;
        Ok(Self { resources, closing, runtime: handle, thread: Some(thread) })
    }

    /// Has a protocol receive connections over these as well from here on.
    pub(crate) fn listen(
        &self,
        reception: &Arc<impl Reception>,
        listeners: Vec<ListeningSocket>,
    ) -> Result<()> {
        let _entered = self.runtime.enter();
        let accepting: Result<Vec<_>> =
            listeners.into_iter().map(|bound| listener::accept(reception.clone(), bound)).collect();
        accepting?.into_iter().for_each(|accept| drop(self.runtime.spawn(accept)));
        Ok(())
    }

    /// Cuts everything; returns when the thread has ended.
    pub(crate) fn close(&mut self) {
        self.resources.connections.drain();
        self.closing.store(true, Release);
        self.resources.link.wakeups.wake_thread();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was told through the mailbox
            self.resources.link.wakeups.forget();
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.close();
    }
}

/// The runtime of a thread that is yet to start.
pub(crate) fn runtime(resources: &Arc<Resources>) -> Result<Runtime> {
    let (before, after) = (resources.clone(), resources.clone());
    Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || {
            before.link.wakeups.before_sleep();
            before.direct.before_sleep();
        })
        .on_thread_unpark(move || {
            after.link.wakeups.after_sleep();
            after.direct.after_sleep();
        })
        .build()
}

/// How long news are collected before they are told: with all that follows at most 2 ms.
const COLLECT: Duration = Duration::from_micros(1_750);

/// Tells Python that there is something to tell.
async fn notify(resources: Arc<Resources>, alarm: Alarm) {
    loop {
        resources.direct.notifier.notified().await;
        if let Err(error) = alarm.after(COLLECT).await {
            resources.link.mailbox.fail(format!("the front end cannot tell what it has served: {error}"));
            return;
        }
        resources.link.mailbox.push(Event::News);
    }
}

fn serve(resources: &Resources, closing: &AtomicBool, runtime: Runtime) {
    let mut told = false;
    runtime.block_on(poll_fn(|cx| {
        resources.link.wakeups.register(cx.waker());
        resources.catch_up();
        if closing.load(Acquire) {
            return Poll::Ready(());
        }
        if resources.connections.is_draining() && !std::mem::replace(&mut told, true) {
            resources.connections.wake_all();
        }
        Poll::Pending
    }));
    drop(runtime); // with all tasks: calls that are open tell that they are gone
}

/// Signals are for Python's thread, whose system calls they are meant to interrupt.
fn block_signals() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::listener::take_over;
    use std::collections::HashMap;
    use std::os::fd::AsRawFd;

    #[test]
    fn nothing_is_left_of_one_that_was_closed() {
        let resources = Arc::new(crate::rig::resources(1 << 20));
        let left = Arc::downgrade(&resources);
        let runtime = runtime(&resources).unwrap();
        let service = Arc::new(Service::new(resources, HashMap::new(), Vec::new(), None));
        drop(ServerThread::start(runtime, service, vec![]).unwrap());
        assert!(left.upgrade().is_none(), "its memory and its descriptors");
    }

    #[test]
    fn what_the_runtime_does_not_take_in_stays_the_callers() {
        let resources = Arc::new(crate::rig::resources(1 << 20));
        let runtime = runtime(&resources).unwrap();
        let service = Arc::new(Service::new(resources, HashMap::new(), Vec::new(), None));
        let mut thread = ServerThread::start(runtime, service.clone(), vec![]).unwrap();
        thread.close();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        assert!(thread.listen(&service, take_over(&[listener.as_raw_fd()]).unwrap()).is_err());
        assert_eq!(listener.local_addr().unwrap(), address);
    }
}
