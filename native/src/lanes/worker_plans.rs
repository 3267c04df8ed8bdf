//! What a worker knows of the requests that come over its ring: where the tensors of each plan lie, and which plans may
//! share a batch. Pure.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Plans that may be known at once; an engine that teaches more than this forgets too little.
pub(crate) const PLANS_MAX: usize = 1 << 20;

const ALIGNMENT: usize = 64;

/// `nbytes` rounded up to where the next tensor may begin.
pub(crate) fn aligned(nbytes: usize) -> Option<usize> {
    Some(nbytes.checked_add(ALIGNMENT - 1)? & !(ALIGNMENT - 1))
}

/// A tensor of a request: bytes from the start of its inputs, or of its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Where it begins.
    pub(crate) start: usize,
    /// How long it is.
    pub(crate) size: usize,
}

/// One learned plan.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Its name.
    pub(crate) id: u32,
    /// Its kind: plans of one kind may share a batch.
    pub(crate) kind: u32,
    /// Rows of the batch that a request brings.
    pub(crate) rows: u32,
    /// Rows of a batch at most.
    pub(crate) max_rows: u32,
    /// In the model's order.
    pub(crate) inputs: Box<[Tensor]>,
    /// In the order in which they are wanted.
    pub(crate) outputs: Box<[Tensor]>,
    in_span: usize,
    out_span: usize,
}

impl Plan {
    /// Whether inputs from `offset` and outputs from `out_offset` lie in an arena of `length` bytes, as they must.
    pub(crate) fn fits(&self, offset: u64, out_offset: u64, length: usize) -> bool {
        let within = |offset: u64, span: usize| {
            let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(span));
            offset.is_multiple_of(ALIGNMENT as u64) && end.is_some_and(|end| end <= length)
        };
        within(offset, self.in_span) && within(out_offset, self.out_span)
    }
}

/// Bytes of one row of each input and of each output: the same for all plans of a kind, or they cannot share a batch.
#[derive(PartialEq, Eq)]
struct RowBytes(Box<[usize]>, Box<[usize]>);

struct Kind {
    row: RowBytes,
    plans: usize,
}

/// The plans of one worker.
#[derive(Default)]
pub(crate) struct Plans {
    plans: HashMap<u32, Arc<Plan>>,
    kinds: HashMap<u32, Kind>,
}

impl Plans {
    /// A plan by its id.
    pub(crate) fn get(&self, plan: u32) -> Option<&Arc<Plan>> {
        self.plans.get(&plan)
    }

    /// Learns a plan; the text of the error says what is wrong with it.
    pub(crate) fn learn(
        &mut self,
        plan: u32,
        kind: u32,
        (rows, max_rows): (u32, u32),
        inputs: &[usize],
        outputs: &[usize],
    ) -> Result<(), String> {
        if rows == 0 {
            return Err(format!("plan {plan} is of 0 rows"));
        }
        if self.plans.len() >= PLANS_MAX {
            return Err(format!("{PLANS_MAX} plans are known, which is the limit"));
        }
        let row = row_bytes(inputs, outputs, rows)
            .ok_or_else(|| format!("plan {plan} has tensors that are no multiple of its {rows} rows"))?;
        let endless = || format!("the tensors of plan {plan} are longer than memory can be");
        let (inputs, in_span) = laid_out(inputs).ok_or_else(endless)?;
        let (outputs, out_span) = laid_out(outputs).ok_or_else(endless)?;
        let learned = Arc::new(Plan { id: plan, kind, rows, max_rows, inputs, outputs, in_span, out_span });
        if self.plans.contains_key(&plan) {
            return Err(format!("plan {plan} is known already"));
        }
        match self.kinds.entry(kind) {
            Entry::Occupied(known) if known.get().row != row => {
                return Err(format!("the rows of plan {plan} are not those of its kind {kind}"));
            }
            Entry::Occupied(mut known) => known.get_mut().plans += 1,
            Entry::Vacant(place) => _ = place.insert(Kind { row, plans: 1 }),
        }
        self.plans.insert(plan, learned);
        Ok(())
    }

    /// Forgets a plan, and gives it back if it was known.
    pub(crate) fn forget(&mut self, plan: u32) -> Option<Arc<Plan>> {
        let plan = self.plans.remove(&plan)?;
        if let Entry::Occupied(mut kind) = self.kinds.entry(plan.kind) {
            kind.get_mut().plans -= 1;
            if kind.get().plans == 0 {
                kind.remove();
            }
        }
        Some(plan)
    }
}

fn row_bytes(inputs: &[usize], outputs: &[usize], rows: u32) -> Option<RowBytes> {
    let of = |sizes: &[usize]| {
        let row = |&size: &usize| (size % rows as usize == 0).then_some(size / rows as usize);
        sizes.iter().map(row).collect::<Option<Box<[usize]>>>()
    };
    Some(RowBytes(of(inputs)?, of(outputs)?))
}

/// Tensors one after the other, each where it may begin, and where the next would.
fn laid_out(sizes: &[usize]) -> Option<(Box<[Tensor]>, usize)> {
    let mut end = 0;
    let mut tensors = Vec::with_capacity(sizes.len());
    for &size in sizes {
        tensors.push(Tensor { start: end, size });
        end = aligned(end.checked_add(size)?)?;
    }
    Some((tensors.into(), end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_begin_at_multiples_of_64() {
        let mut plans = Plans::default();
        plans.learn(1, 1, (2, 8), &[10, 0, 64], &[130, 2]).unwrap();
        let plan = plans.get(1).unwrap();
        let starts = |tensors: &[Tensor]| tensors.iter().map(|each| each.start).collect::<Vec<_>>();
        assert_eq!((starts(&plan.inputs), starts(&plan.outputs)), (vec![0, 64, 64], vec![0, 192]));
        assert!(plan.fits(0, 128, 384) && plan.fits(256, 0, 384));
        assert!(!plan.fits(0, 192, 384) && !plan.fits(320, 0, 384));
        assert!(!plan.fits(8, 128, 384) && !plan.fits(u64::MAX - 63, 0, 384));
    }

    #[test]
    fn plans_of_a_kind_have_rows_of_the_same_size() {
        let mut plans = Plans::default();
        plans.learn(1, 5, (1, 8), &[4, 0], &[8]).unwrap();
        plans.learn(2, 5, (3, 8), &[12, 0], &[24]).unwrap();
        assert!(plans.learn(3, 5, (1, 8), &[5, 0], &[8]).unwrap_err().contains("kind 5"));
        assert!(plans.learn(3, 5, (1, 8), &[4], &[8]).unwrap_err().contains("kind 5"));
        assert!(plans.learn(2, 5, (1, 8), &[4, 0], &[8]).unwrap_err().contains("known already"));
        assert!(plans.learn(4, 6, (2, 8), &[5], &[8]).unwrap_err().contains("no multiple"));
        assert!(plans.learn(4, 6, (0, 8), &[], &[]).unwrap_err().contains("0 rows"));
        assert!(plans.learn(4, 6, (1, 8), &[usize::MAX, 1], &[]).unwrap_err().contains("memory"));
        assert!(plans.get(3).is_none() && plans.get(4).is_none());
        plans.forget(1);
        plans.forget(1);
        plans.forget(2);
        plans.learn(3, 5, (1, 8), &[5], &[]).expect("a kind without plans is forgotten");
    }
}
