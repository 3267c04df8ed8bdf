//! What gRPC calls share: the methods that there are, and what every connection has.

use crate::handover::calls::Kind;
use crate::resources::Resources;
use std::collections::HashMap;
use std::sync::Arc;

/// See the head of this file.
pub(crate) struct Service {
    pub(crate) resources: Arc<Resources>,
    /// Index and kind of each method by its path.
    pub(crate) methods: HashMap<String, (u32, Kind)>,
    /// Those of them whose messages are inference requests, which clients' quotas bound.
    pub(crate) inferences: Vec<u32>,
}
