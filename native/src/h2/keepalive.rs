//! When a connection is pinged, asked to leave, or cut: pure, time is an argument.

use crate::measure::limits::{Limit, Limits};

/// What to do with a connection now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing before this time.
    WaitUntil(u64),
    /// Send a ping.
    Ping,
    /// Ask the client to leave; calls under way go on.
    Leave,
    /// Cut it, for this limit.
    Cut(Limit),
}

/// The times that matter on one connection.
pub(crate) struct Keepalive {
    keepalive_ns: u64,
    pong_ns: u64,
    stall_ns: u64,
    leave_at_ns: Option<u64>,
    pinged_ns: Option<u64>,
}

fn ns(limits: &Limits, limit: Limit) -> u64 {
    limits.get(limit) * 1_000_000
}

impl Keepalive {
    /// A connection that begins now.
    pub(crate) fn new(limits: &Limits, now_ns: u64) -> Self {
        let age = ns(limits, Limit::ConnectionAgeMs);
        Self {
            keepalive_ns: ns(limits, Limit::KeepaliveMs),
            pong_ns: ns(limits, Limit::KeepaliveTimeoutMs),
            stall_ns: ns(limits, Limit::WriteStallMs),
            leave_at_ns: (age > 0).then_some(now_ns + age),
            pinged_ns: None,
        }
    }

    /// Looks at the connection: when it was last heard and since when it takes nothing. A verdict other than to wait
    /// is given once; ask again after acting on it.
    pub(crate) fn look(&mut self, now_ns: u64, heard_ns: u64, blocked_ns: Option<u64>) -> Verdict {
        if self.pinged_ns.is_some_and(|pinged| heard_ns > pinged) {
            self.pinged_ns = None; // whatever was heard, the client is there
        }
        let stalled_at = blocked_ns.map(|since| since + self.stall_ns);
        if stalled_at.is_some_and(|at| now_ns >= at) {
            return Verdict::Cut(Limit::WriteStallMs);
        }
        let silent_at = self.pinged_ns.map_or(heard_ns + self.keepalive_ns, |pinged| pinged + self.pong_ns);
        if now_ns >= silent_at {
            if self.pinged_ns.is_some() {
                return Verdict::Cut(Limit::KeepaliveTimeoutMs);
            }
            self.pinged_ns = Some(now_ns);
            return Verdict::Ping;
        }
        if self.leave_at_ns.is_some_and(|at| now_ns >= at) {
            self.leave_at_ns = None;
            return Verdict::Leave;
        }
        // A stall can begin at any time: look at least as often as one may last.
        let stall_look = stalled_at.unwrap_or(now_ns + self.stall_ns);
        Verdict::WaitUntil(silent_at.min(stall_look).min(self.leave_at_ns.unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::limits::LIMITS;

    const MS: u64 = 1_000_000;

    fn keepalive(age_ms: i64) -> Keepalive {
        let value = |name: &str| match name {
            "keepalive_ms" => 100,
            "keepalive_timeout_ms" => 20,
            "write_stall_ms" => 500,
            "connection_age_ms" => age_ms,
            _ => 1000,
        };
        Keepalive::new(
            &Limits::new(LIMITS.iter().map(|(name, ..)| (name.to_string(), value(name)))).unwrap(),
            0,
        )
    }

    #[test]
    fn a_silent_connection_is_pinged_and_then_cut() {
        let mut keepalive = keepalive(0);
        assert_eq!(keepalive.look(0, 0, None), Verdict::WaitUntil(100 * MS));
        assert_eq!(keepalive.look(100 * MS, 0, None), Verdict::Ping);
        assert_eq!(keepalive.look(100 * MS, 0, None), Verdict::WaitUntil(120 * MS));
        assert_eq!(keepalive.look(120 * MS, 0, None), Verdict::Cut(Limit::KeepaliveTimeoutMs));
    }

    #[test]
    fn a_connection_that_answers_stays() {
        let mut keepalive = keepalive(0);
        assert_eq!(keepalive.look(100 * MS, 0, None), Verdict::Ping);
        assert_eq!(keepalive.look(120 * MS, 110 * MS, None), Verdict::WaitUntil(210 * MS));
        assert_eq!(keepalive.look(210 * MS, 110 * MS, None), Verdict::Ping);
    }

    #[test]
    fn a_connection_is_asked_to_leave_once() {
        let mut keepalive = keepalive(50);
        assert_eq!(keepalive.look(10 * MS, 0, None), Verdict::WaitUntil(50 * MS));
        assert_eq!(keepalive.look(50 * MS, 0, None), Verdict::Leave);
        assert_eq!(keepalive.look(50 * MS, 0, None), Verdict::WaitUntil(100 * MS));
    }

    #[test]
    fn a_connection_that_takes_nothing_is_cut() {
        let mut keepalive = keepalive(0);
        assert_eq!(keepalive.look(450 * MS, 440 * MS, Some(10 * MS)), Verdict::WaitUntil(510 * MS));
        assert_eq!(keepalive.look(510 * MS, 500 * MS, Some(10 * MS)), Verdict::Cut(Limit::WriteStallMs));
    }
}
