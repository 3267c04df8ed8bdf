//! What calls of one connection share.

use crate::h2::monitor::SharedMonitor;
use crate::h2::window::Window;
use crate::listen::quota::Account;
use crate::measure::budget::Budget;
use std::sync::Arc;

/// A client, as its calls see it.
pub(crate) struct Caller {
    /// Its address as text.
    pub(crate) peer: Arc<str>,
    /// Its name by its certificate; empty: that is not known.
    pub(crate) client: Arc<str>,
    /// What it may ask.
    pub(crate) account: Arc<Account>,
    /// How it behaves.
    pub(crate) monitor: SharedMonitor,
    /// Its share of the memory for request messages.
    pub(crate) requests: Arc<Budget>,
    /// Its share of the memory for answers.
    pub(crate) answers: Arc<Budget>,
    /// How much it may send ahead.
    pub(crate) window: Arc<Window>,
}
