//! Utility calls: a method's name, arguments, and an answer under the call's number.

use super::outputs::monotonic;
use rmp::encode::{write_array_len, write_f64, write_nil, write_sint, write_str, write_u32};
use serde::Deserialize;
use serde_json::Value;

/// What a front end asks of the worker itself, and not of a request.
#[derive(Debug, Deserialize)]
pub(crate) struct Call {
    /// Which of the front end's sockets asks; there is one.
    _client: u64,
    pub id: i64,
    pub method: String,
    pub arguments: Vec<Value>,
}

/// The id of a call that may be damaged behind it.
pub(crate) fn call_id(bytes: &[u8]) -> Option<i64> {
    let mut rest = bytes;
    rmp::decode::read_array_len(&mut rest).ok()?;
    rmp::decode::read_int::<u64, _>(&mut rest).ok()?;
    rmp::decode::read_int(&mut rest).ok()
}

/// The message with a method's result.
pub(crate) fn answer(rank: u16, call: i64, result: &Value) -> Vec<u8> {
    message(rank, call, |to| {
        // Writing to a vector does not fail.
        let _ = write_nil(to);
        let _ = write_array_len(to, 2);
        let _ = write_nil(to);
        to.extend(rmp_serde::to_vec_named(result).unwrap_or_else(|_| vec![0xc0]));
    })
}

/// The message that says why there is none.
pub(crate) fn failure(rank: u16, call: i64, why: &str) -> Vec<u8> {
    message(rank, call, |to| {
        let _ = write_str(to, why);
        let _ = write_nil(to);
    })
}

fn message(rank: u16, call: i64, outcome: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut to = Vec::with_capacity(64);
    let _ = write_array_len(&mut to, 5);
    let _ = write_u32(&mut to, u32::from(rank));
    let _ = write_array_len(&mut to, 0);
    let _ = write_nil(&mut to);
    let _ = write_f64(&mut to, monotonic());
    let _ = write_array_len(&mut to, 3);
    let _ = write_sint(&mut to, call);
    outcome(&mut to);
    to
}

#[cfg(test)]
mod tests {
    use super::super::{Added, read};
    use super::*;

    #[test]
    fn a_call_that_can_not_be_read_is_known_by_its_id() {
        let mut bytes = rmp_serde::to_vec(&(0, 7, "method")).unwrap();
        assert!(read::<Call>(&bytes).is_err(), "its arguments are missing");
        assert_eq!(call_id(&bytes), Some(7));
        bytes.truncate(3);
        assert_eq!(call_id(&bytes), Some(7));
        assert_eq!(call_id(&bytes[..2]), None);
        assert_eq!(call_id(b"\xc0"), None);
    }

    /// As deep as a message is long: each value would take stack.
    #[test]
    fn values_that_lie_too_deep_are_refused() {
        let nested = |depth: usize| {
            let mut bytes = vec![0x94, 0, 7];
            bytes.extend(rmp_serde::to_vec("method").unwrap());
            bytes.extend(std::iter::repeat_n(0x91, depth));
            bytes.push(0xc0);
            bytes
        };
        let call = |depth| read::<Call>(&nested(depth));
        assert_eq!(call(100).unwrap().arguments.len(), 1);
        assert!(call(1 << 20).unwrap_err().to_string().contains("depth limit"));
        assert_eq!(call_id(&nested(1 << 20)), Some(7));
        // Where a request has the features of images.
        let request = [&[0xdc, 0, 15, 0xa1, b'r', 0x91, 1][..], &[0x91; 1 << 20]].concat();
        assert!(Added::read(&request).is_err_and(|why| why.contains("depth limit")));
    }
}
