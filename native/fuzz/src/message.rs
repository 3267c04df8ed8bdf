//! A request message made of its parts, for checks and tests.

/// The head first, then the id, if there is one, and the tensors.
pub fn rebuilt(head: &[u8], id: &[u8], tensors: &[&[u8]]) -> Vec<u8> {
    const ID: u8 = 3 << 3 | 2;
    const RAW: u8 = 7 << 3 | 2;
    let mut message = head.to_vec();
    let id = [(ID, id)].into_iter().filter(|(_, id)| !id.is_empty());
    for (tag, piece) in id.chain(tensors.iter().map(|tensor| (RAW, *tensor))) {
        message.push(tag);
        let mut length = piece.len();
        while length > 127 {
            message.push(length as u8 | 128);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(piece);
    }
    message
}
