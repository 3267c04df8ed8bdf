//! Request templates: how requests like one that was checked before are recognised, where their tensors lie, and how they
//! are answered.

pub mod array;
pub mod number;
pub mod scan;
pub mod template;
