//! Request templates: how requests like one that was checked before are recognised, where their tensors lie, and how
//! they are answered. Pure; it validates nothing that Python has not accepted before.

pub(crate) mod array;
pub(crate) mod number;
pub(crate) mod scan;
pub(crate) mod template;
