//! Requests as torch's client writes them: an operation in one byte, then its fields, little-endian. A text is its
//! length in 8 bytes and its bytes.
//!
//! Nothing is allocated by what a length claims: a request is taken once all its bytes are there, and a length above the
//! limits is an error at once.

/// What a client sends first, in [`Request::Validate`].
pub const MAGIC: u32 = 0x3C85_F7CE;
/// Longest key, in bytes.
pub const MAX_KEY: usize = 64 * 1024;
/// Longest value, in bytes.
pub const MAX_VALUE: usize = 16 * 1024 * 1024;
/// Most keys in one request.
pub const MAX_KEYS: usize = 16 * 1024;
/// Longest request, in bytes.
pub const MAX_REQUEST: usize = 32 * 1024 * 1024;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// 0: the client speaks this protocol.
    Validate(u32),
    /// 1
    Set(Vec<u8>, Vec<u8>),
    /// 2: key, expected, new.
    CompareSet(Vec<u8>, Vec<u8>, Vec<u8>),
    /// 3
    Get(Vec<u8>),
    /// 4
    Add(Vec<u8>, i64),
    /// 5
    Check(Vec<Vec<u8>>),
    /// 6
    Wait(Vec<Vec<u8>>),
    /// 7
    CountKeys,
    /// 8
    Delete(Vec<u8>),
    /// 9
    Append(Vec<u8>, Vec<u8>),
    /// 10
    MultiGet(Vec<Vec<u8>>),
    /// 11
    MultiSet(Vec<(Vec<u8>, Vec<u8>)>),
    /// 12
    CancelWait,
    /// 13
    Ping(u32),
}

/// Why a connection's bytes are no requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// An operation of another version, or no operation at all.
    #[error("operation {0} is not known")]
    UnknownOperation(u8),
    /// A length or number above what is taken.
    #[error("a request is too long: {what} {claimed}, and at most {limit} are taken")]
    TooLong {
        /// Of what.
        what: &'static str,
        /// What the client claims.
        claimed: u64,
        /// What is taken.
        limit: usize,
    },
}

/// The first request in the bytes, and how many of them it takes. `None` = it is not all there yet.
///
/// # Errors
/// The bytes can't become a request, whatever follows.
pub fn decode(bytes: &[u8]) -> Result<Option<(Request, usize)>, Malformed> {
    let mut reader = Reader { rest: bytes };
    match reader.request() {
        Ok(request) => Ok(Some((request, bytes.len() - reader.rest.len()))),
        Err(Stop::Short) if bytes.len() > MAX_REQUEST => {
            Err(Malformed::TooLong { what: "bytes", claimed: bytes.len() as u64, limit: MAX_REQUEST })
        }
        Err(Stop::Short) => Ok(None),
        Err(Stop::Malformed(why)) => Err(why),
    }
}

enum Stop {
    /// More bytes are needed.
    Short,
    Malformed(Malformed),
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn request(&mut self) -> Result<Request, Stop> {
        let [operation] = self.array()?;
        Ok(match operation {
            0 => Request::Validate(u32::from_le_bytes(self.array()?)),
            1 => Request::Set(self.key()?, self.value()?),
            2 => Request::CompareSet(self.key()?, self.value()?, self.value()?),
            3 => Request::Get(self.key()?),
            4 => Request::Add(self.key()?, i64::from_le_bytes(self.array()?)),
            5 => Request::Check(self.many(Self::key)?),
            6 => Request::Wait(self.many(Self::key)?),
            7 => Request::CountKeys,
            8 => Request::Delete(self.key()?),
            9 => Request::Append(self.key()?, self.value()?),
            10 => Request::MultiGet(self.many(Self::key)?),
            11 => Request::MultiSet(self.many(|r| Ok((r.key()?, r.value()?)))?),
            12 => Request::CancelWait,
            13 => Request::Ping(u32::from_le_bytes(self.array()?)),
            other => return Err(Stop::Malformed(Malformed::UnknownOperation(other))),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Stop::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    fn length(&mut self, what: &'static str, limit: usize) -> Result<usize, Stop> {
        let claimed = u64::from_le_bytes(self.array()?);
        match usize::try_from(claimed) {
            Ok(length) if length <= limit => Ok(length),
            _ => Err(Stop::Malformed(Malformed::TooLong { what, claimed, limit })),
        }
    }

    fn bytes(&mut self, what: &'static str, limit: usize) -> Result<Vec<u8>, Stop> {
        let length = self.length(what, limit)?;
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Stop::Short)?;
        self.rest = rest;
        Ok(head.to_vec())
    }

    fn key(&mut self) -> Result<Vec<u8>, Stop> {
        self.bytes("bytes of a key", MAX_KEY)
    }

    fn value(&mut self) -> Result<Vec<u8>, Stop> {
        self.bytes("bytes of a value", MAX_VALUE)
    }

    fn many<T>(&mut self, one: impl Fn(&mut Self) -> Result<T, Stop>) -> Result<Vec<T>, Stop> {
        let count = self.length("keys", MAX_KEYS)?;
        (0..count).map(|_| one(self)).collect()
    }
}

/// A text as a reply carries it.
pub fn text(value: &[u8]) -> Vec<u8> {
    [(value.len() as u64).to_le_bytes().as_slice(), value].concat()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn key_and(operation: u8, key: &[u8], more: &[u8]) -> Vec<u8> {
        [&[operation], text(key).as_slice(), more].concat()
    }

    fn samples() -> Vec<(Vec<u8>, Request)> {
        let keys = |op: u8| [&[op], 2u64.to_le_bytes().as_slice(), &text(b"a"), &text(b"b")].concat();
        let ab = || vec![b"a".to_vec(), b"b".to_vec()];
        vec![
            (vec![0, 0xCE, 0xF7, 0x85, 0x3C], Request::Validate(MAGIC)),
            (key_and(1, b"k", &text(b"v")), Request::Set(b"k".to_vec(), b"v".to_vec())),
            (
                key_and(2, b"k", &[text(b""), text(b"n")].concat()),
                Request::CompareSet(b"k".to_vec(), Vec::new(), b"n".to_vec()),
            ),
            (key_and(3, b"k", &[]), Request::Get(b"k".to_vec())),
            (key_and(4, b"k", &(-2i64).to_le_bytes()), Request::Add(b"k".to_vec(), -2)),
            (keys(5), Request::Check(ab())),
            (keys(6), Request::Wait(ab())),
            (vec![7], Request::CountKeys),
            (key_and(8, b"k", &[]), Request::Delete(b"k".to_vec())),
            (key_and(9, b"k", &text(b"v")), Request::Append(b"k".to_vec(), b"v".to_vec())),
            (keys(10), Request::MultiGet(ab())),
            (
                [&[11u8], 1u64.to_le_bytes().as_slice(), &text(b"a"), &text(b"1")].concat(),
                Request::MultiSet(vec![(b"a".to_vec(), b"1".to_vec())]),
            ),
            (vec![12], Request::CancelWait),
            (vec![13, 1, 2, 0, 0], Request::Ping(0x201)),
        ]
    }

    #[test]
    fn every_operation_is_read_as_torch_writes_it() {
        for (bytes, want) in samples() {
            assert_eq!(decode(&bytes).unwrap(), Some((want.clone(), bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut]).unwrap(), None, "{want:?} cut at {cut}");
            }
            let twice = [bytes.as_slice(), &bytes].concat();
            assert_eq!(decode(&twice).unwrap(), Some((want, bytes.len())), "what follows is left alone");
        }
    }

    #[test]
    fn what_claims_too_much_is_refused_before_it_comes() {
        for operation in [1, 3, 8] {
            let bytes = [&[operation], (MAX_KEY as u64 + 1).to_le_bytes().as_slice()].concat();
            assert!(matches!(decode(&bytes), Err(Malformed::TooLong { .. })), "{operation}");
        }
        let keys = [&[6u8], u64::MAX.to_le_bytes().as_slice()].concat();
        assert!(matches!(decode(&keys), Err(Malformed::TooLong { what: "keys", .. })));
        assert_eq!(decode(&[14]), Err(Malformed::UnknownOperation(14)));
        assert_eq!(decode(b"GET / HTTP/1.1"), Err(Malformed::UnknownOperation(b'G')));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_short_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((_, used))) = decode(&bytes) {
                prop_assert!(used > 0 && used <= bytes.len());
            }
        }

        #[test]
        fn small_lengths_are_read_in_full(op in 0u8..15, lengths in proptest::collection::vec(0u64..20, 1..6)) {
            let mut bytes = vec![op];
            for length in lengths {
                bytes.extend(length.to_le_bytes());
                bytes.extend(vec![b'x'; usize::try_from(length).unwrap()]);
            }
            if let Ok(Some((_, used))) = decode(&bytes) {
                prop_assert!(used <= bytes.len());
                prop_assert_eq!(decode(&bytes[..used]).unwrap().map(|(_, n)| n), Some(used));
            }
        }
    }
}
