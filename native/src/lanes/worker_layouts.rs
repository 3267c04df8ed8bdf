//! What a worker knows of the requests that come over its ring: where the tensors of each template lie, and which of
//! these may share a batch. Pure.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Layouts that may be known at once; an engine that adds more than this drops too little.
pub(crate) const LAYOUTS_MAX: usize = 1 << 20;

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

/// How the tensors of one request template lie.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The template.
    pub(crate) id: u32,
    /// Its kind: those of one kind may share a batch.
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

impl Layout {
    /// Whether inputs from `offset` and outputs from `out_offset` lie in an arena of `length` bytes, as they must.
    pub(crate) fn fits(&self, offset: u64, out_offset: u64, length: usize) -> bool {
        let within = |offset: u64, span: usize| {
            let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(span));
            offset.is_multiple_of(ALIGNMENT as u64) && end.is_some_and(|end| end <= length)
        };
        within(offset, self.in_span) && within(out_offset, self.out_span)
    }
}

/// Bytes of one row of each input and of each output: the same for all of a kind, or they cannot share a batch.
#[derive(PartialEq, Eq)]
struct RowBytes(Box<[usize]>, Box<[usize]>);

struct Kind {
    row: RowBytes,
    layouts: usize,
}

/// The layouts of one worker.
#[derive(Default)]
pub(crate) struct Layouts {
    layouts: HashMap<u32, Arc<Layout>>,
    kinds: HashMap<u32, Kind>,
}

impl Layouts {
    /// That of a template.
    pub(crate) fn get(&self, template: u32) -> Option<&Arc<Layout>> {
        self.layouts.get(&template)
    }

    /// Adds that of a template; the text of the error says what is wrong with it.
    pub(crate) fn add(
        &mut self,
        template: u32,
        kind: u32,
        (rows, max_rows): (u32, u32),
        inputs: &[usize],
        outputs: &[usize],
    ) -> Result<(), String> {
        if rows == 0 {
            return Err(format!("template {template} is of 0 rows"));
        }
        if self.layouts.len() >= LAYOUTS_MAX {
            return Err(format!("{LAYOUTS_MAX} layouts are known, which is the limit"));
        }
        let row = row_bytes(inputs, outputs, rows).ok_or_else(|| {
            format!("template {template} has tensors that are no multiple of its {rows} rows")
        })?;
        let endless = || format!("the tensors of template {template} are longer than memory can be");
        let (inputs, in_span) = laid_out(inputs).ok_or_else(endless)?;
        let (outputs, out_span) = laid_out(outputs).ok_or_else(endless)?;
        let layout =
            Arc::new(Layout { id: template, kind, rows, max_rows, inputs, outputs, in_span, out_span });
        if self.layouts.contains_key(&template) {
            return Err(format!("template {template} is known already"));
        }
        match self.kinds.entry(kind) {
            Entry::Occupied(known) if known.get().row != row => {
                return Err(format!("the rows of template {template} are not those of its kind {kind}"));
            }
            Entry::Occupied(mut known) => known.get_mut().layouts += 1,
            Entry::Vacant(place) => _ = place.insert(Kind { row, layouts: 1 }),
        }
        self.layouts.insert(template, layout);
        Ok(())
    }

    /// Drops that of a template, and gives it back if it was known.
    pub(crate) fn drop_of(&mut self, template: u32) -> Option<Arc<Layout>> {
        let layout = self.layouts.remove(&template)?;
        if let Entry::Occupied(mut kind) = self.kinds.entry(layout.kind) {
            kind.get_mut().layouts -= 1;
            if kind.get().layouts == 0 {
                kind.remove();
            }
        }
        Some(layout)
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
        let mut layouts = Layouts::default();
        layouts.add(1, 1, (2, 8), &[10, 0, 64], &[130, 2]).unwrap();
        let layout = layouts.get(1).unwrap();
        let starts = |tensors: &[Tensor]| tensors.iter().map(|each| each.start).collect::<Vec<_>>();
        assert_eq!((starts(&layout.inputs), starts(&layout.outputs)), (vec![0, 64, 64], vec![0, 192]));
        assert!(layout.fits(0, 128, 384) && layout.fits(256, 0, 384));
        assert!(!layout.fits(0, 192, 384) && !layout.fits(320, 0, 384));
        assert!(!layout.fits(8, 128, 384) && !layout.fits(u64::MAX - 63, 0, 384));
    }

    #[test]
    fn layouts_of_a_kind_have_rows_of_the_same_size() {
        let mut layouts = Layouts::default();
        layouts.add(1, 5, (1, 8), &[4, 0], &[8]).unwrap();
        layouts.add(2, 5, (3, 8), &[12, 0], &[24]).unwrap();
        assert!(layouts.add(3, 5, (1, 8), &[5, 0], &[8]).unwrap_err().contains("kind 5"));
        assert!(layouts.add(3, 5, (1, 8), &[4], &[8]).unwrap_err().contains("kind 5"));
        assert!(layouts.add(2, 5, (1, 8), &[4, 0], &[8]).unwrap_err().contains("known already"));
        assert!(layouts.add(4, 6, (2, 8), &[5], &[8]).unwrap_err().contains("no multiple"));
        assert!(layouts.add(4, 6, (0, 8), &[], &[]).unwrap_err().contains("0 rows"));
        assert!(layouts.add(4, 6, (1, 8), &[usize::MAX, 1], &[]).unwrap_err().contains("memory"));
        assert!(layouts.get(3).is_none() && layouts.get(4).is_none());
        layouts.drop_of(1);
        layouts.drop_of(1);
        layouts.drop_of(2);
        layouts.add(3, 5, (1, 8), &[5], &[]).expect("a kind without layouts is forgotten");
    }
}
