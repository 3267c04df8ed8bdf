//! How many connections there are, from where, and how to reach the tasks that must hear of a drain.

use crate::measure::limits::Limit;
use crate::measure::lock::Lock;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::task::Waker;

#[derive(Default)]
struct Register {
    total: u64,
    per_peer: HashMap<IpAddr, u64>,
    next: u64,
    tasks: HashMap<u64, Waker>,
}

/// The register of connections.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Default)]
struct Shared {
    register: Lock<Register>,
    draining: AtomicBool,
}

/// A connection that counts until this is dropped.
pub(crate) struct Admission {
    register: Connections,
    peer: Option<IpAddr>,
}

/// A task that is woken by `wake_all` until this is dropped.
pub(crate) struct Listening {
    register: Connections,
    id: u64,
}

impl Admission {
    /// What counts as its peer; None over a Unix socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.peer
    }
}

impl Connections {
    /// Lets a connection in, or names the limit that keeps it out: `most` in total, or `most_per_peer`. Unix sockets
    /// have no peer address.
    pub(crate) fn admit(
        &self,
        most: u64,
        most_per_peer: u64,
        peer: Option<IpAddr>,
    ) -> Result<Admission, Limit> {
        let mut register = self.0.register.lock();
        if register.total >= most {
            return Err(Limit::Connections);
        }
        let peer = peer.map(network);
        if let Some(peer) = peer {
            let count = register.per_peer.entry(peer).or_default();
            if *count >= most_per_peer {
                return Err(Limit::ConnectionsPerPeer);
            }
            *count += 1;
        }
        register.total += 1;
        Ok(Admission { register: self.clone(), peer })
    }

    /// Enters a task.
    pub(crate) fn listen(&self, task: &Waker) -> Listening {
        let mut register = self.0.register.lock();
        register.next += 1;
        let id = register.next;
        register.tasks.insert(id, task.clone());
        Listening { register: self.clone(), id }
    }

    /// No new calls are wanted from here on; to be told to the tasks by `wake_all`. False: that was said before.
    pub(crate) fn drain(&self) -> bool {
        !self.0.draining.swap(true, AcqRel)
    }

    /// Whether new calls are no longer wanted.
    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Acquire)
    }

    /// Wakes every task that is entered.
    pub(crate) fn wake_all(&self) {
        let tasks: Vec<Waker> = self.0.register.lock().tasks.values().cloned().collect();
        tasks.into_iter().for_each(Waker::wake);
    }
}

/// What counts as one peer: an IPv4 address, or the upper half of an IPv6 address, since whoever has one of these has
/// all that share it.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    const UPPER: u128 = u128::MAX << 64;
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & UPPER).into(),
        address => address,
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut register = self.register.0.register.lock();
        register.total -= 1;
        if let Some(peer) = self.peer
            && let Some(count) = register.per_peer.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                register.per_peer.remove(&peer);
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.register.0.register.lock().tasks.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded_in_total_and_per_peer() {
        let connections = Connections::default();
        let (one, two) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        let first = connections.admit(3, 2, one).ok().unwrap();
        let _second = connections.admit(3, 2, one).ok().unwrap();
        assert_eq!(connections.admit(3, 2, one).err(), Some(Limit::ConnectionsPerPeer));
        let _third = connections.admit(3, 2, two).ok().unwrap();
        assert_eq!(connections.admit(3, 2, None).err(), Some(Limit::Connections));
        drop(first);
        assert!(connections.admit(3, 2, one).is_ok());
        assert_eq!(connections.0.register.lock().per_peer.len(), 2);
    }

    #[test]
    fn ipv6_peers_are_counted_by_their_network() {
        let connections = Connections::default();
        let admit = |address: &str| connections.admit(3, 2, address.parse().ok());
        let held = [admit("2001:db8::1").ok().unwrap(), admit("2001:db8:0:0:ffff::2").ok().unwrap()];
        assert_eq!(admit("2001:db8::3").err(), Some(Limit::ConnectionsPerPeer));
        assert!(admit("2001:db8:0:1::1").is_ok());
        assert!(admit("::ffff:10.0.0.1").is_ok());
        drop(held);
        assert!(connections.0.register.lock().per_peer.is_empty());
    }
}
