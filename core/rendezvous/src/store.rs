//! What the requests mean: keys, values, and who waits for which key. Pure.

use std::collections::{BTreeSet, HashMap};

/// Who waits, as the caller counts them.
pub type WaiterId = u64;

/// What one key costs beside its bytes, roughly, in bytes.
const ENTRY: usize = 128;

/// The store holds as much as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store would hold more than {limit} bytes")]
pub struct Full {
    /// Bytes that it may hold.
    pub limit: usize,
}

/// A value that is to be added to is no number, or the sum is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is no whole number of 64 bits")]
pub struct NotANumber;

/// Why a request can't be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// See there.
    #[error(transparent)]
    Full(#[from] Full),
    /// See there.
    #[error(transparent)]
    NotANumber(#[from] NotANumber),
}

/// Keys and values of one run.
#[derive(Debug)]
pub struct Store {
    values: HashMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    limit: usize,
    /// Keys that each waiter still waits for.
    missing: HashMap<WaiterId, BTreeSet<Vec<u8>>>,
    /// The same by key.
    waiters: HashMap<Vec<u8>, BTreeSet<WaiterId>>,
}

impl Store {
    /// An empty store that may hold so many bytes.
    pub fn new(limit: usize) -> Store {
        Store { values: HashMap::new(), bytes: 0, limit, missing: HashMap::new(), waiters: HashMap::new() }
    }

    /// Bytes held, with an allowance for each key.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The value of a key; empty if there is none, as torch's own server answers.
    pub fn get(&self, key: &[u8]) -> &[u8] {
        self.values.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether all these keys are there.
    pub fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.values.contains_key(key))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Sets a key. Gives the waiters whose last missing key it was.
    ///
    /// # Errors
    /// [`Full`]; nothing has changed then.
    pub fn set(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<Vec<WaiterId>, Full> {
        let bytes = self.bytes - self.cost(&key) + ENTRY + key.len() + value.len();
        if bytes > self.limit {
            return Err(Full { limit: self.limit });
        }
        self.bytes = bytes;
        let woken = self.wake(&key); // gives bytes back
        self.values.insert(key, value);
        Ok(woken)
    }

    /// Sets a key to `new` if its value is `expected` (an empty `expected` also means: if there is none). Gives the
    /// value then in force as torch tells it: of a key that is not there and stays so, `expected`.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn compare_set(
        &mut self,
        key: Vec<u8>,
        expected: Vec<u8>,
        new: Vec<u8>,
    ) -> Result<(Vec<u8>, Vec<WaiterId>), Full> {
        match self.values.get(&key) {
            None if !expected.is_empty() => Ok((expected, Vec::new())),
            Some(now) if *now != expected => Ok((now.clone(), Vec::new())),
            _ => {
                let woken = self.set(key, new.clone())?;
                Ok((new, woken))
            }
        }
    }

    /// Adds to a number, which begins at 0 and is kept as decimal text.
    ///
    /// # Errors
    /// [`NotANumber`] and as [`Store::set`].
    pub fn add(&mut self, key: Vec<u8>, amount: i64) -> Result<(i64, Vec<WaiterId>), StoreError> {
        let now = match self.values.get(&key) {
            None => 0,
            Some(text) => std::str::from_utf8(text).ok().and_then(|t| t.parse::<i64>().ok()).ok_or(NotANumber)?,
        };
        let sum = now.checked_add(amount).ok_or(NotANumber)?;
        let woken = self.set(key, sum.to_string().into_bytes())?;
        Ok((sum, woken))
    }

    /// Adds bytes to the end of a value, which begins empty.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn append(&mut self, key: Vec<u8>, more: &[u8]) -> Result<Vec<WaiterId>, Full> {
        let whole = [self.get(&key), more].concat();
        self.set(key, whole)
    }

    /// Whether the key was there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        self.bytes -= self.cost(key);
        self.values.remove(key).is_some()
    }

    /// Lets someone wait for keys. True if all are there already: then there is nothing to wait for. Who waits already
    /// waits for these from now on.
    ///
    /// # Errors
    /// [`Full`]: what is waited for is held too.
    pub fn wait(&mut self, id: WaiterId, keys: Vec<Vec<u8>>) -> Result<bool, Full> {
        self.forget(id);
        let missing: BTreeSet<Vec<u8>> = keys.into_iter().filter(|key| !self.values.contains_key(key)).collect();
        if missing.is_empty() {
            return Ok(true);
        }
        let bytes = self.bytes + missing.iter().map(|key| waiting_cost(key)).sum::<usize>();
        if bytes > self.limit {
            return Err(Full { limit: self.limit });
        }
        self.bytes = bytes;
        for key in &missing {
            self.waiters.entry(key.clone()).or_default().insert(id);
        }
        self.missing.insert(id, missing);
        Ok(false)
    }

    /// Someone waits no longer.
    pub fn forget(&mut self, id: WaiterId) {
        for key in self.missing.remove(&id).into_iter().flatten() {
            self.bytes -= waiting_cost(&key);
            if let Some(ids) = self.waiters.get_mut(&key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.waiters.remove(&key);
                }
            }
        }
    }

    fn cost(&self, key: &[u8]) -> usize {
        self.values.get(key).map_or(0, |value| ENTRY + key.len() + value.len())
    }

    fn wake(&mut self, key: &[u8]) -> Vec<WaiterId> {
        let mut woken = Vec::new();
        for id in self.waiters.remove(key).into_iter().flatten() {
            if let Some(missing) = self.missing.get_mut(&id) {
                if let Some(key) = missing.take(key) {
                    self.bytes -= waiting_cost(&key);
                }
                if missing.is_empty() {
                    self.missing.remove(&id);
                    woken.push(id);
                }
            }
        }
        woken
    }
}

/// A key that is waited for is held by its waiter and, if it is the first, by the list of waiters.
fn waiting_cost(key: &[u8]) -> usize {
    2 * (ENTRY + key.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn b(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    #[test]
    fn compare_set_has_torchs_four_answers() {
        let mut s = Store::new(4096);
        assert_eq!(s.compare_set(b("k"), b("x"), b("n")).unwrap().0, b("x"), "absent, something expected");
        assert!(s.is_empty());
        assert_eq!(s.compare_set(b("k"), b(""), b("1")).unwrap().0, b("1"), "absent, nothing expected");
        assert_eq!(s.compare_set(b("k"), b("0"), b("2")).unwrap().0, b("1"), "another is there");
        assert_eq!(s.compare_set(b("k"), b("1"), b("2")).unwrap().0, b("2"));
        assert_eq!(s.get(b"k"), b"2");
    }

    #[test]
    fn numbers_are_decimal_text() {
        let mut s = Store::new(4096);
        assert_eq!(s.add(b("n"), 5).unwrap().0, 5);
        assert_eq!(s.add(b("n"), -7).unwrap().0, -2);
        assert_eq!(s.get(b"n"), b"-2");
        s.set(b("n"), b("x")).unwrap();
        assert_eq!(s.add(b("n"), 1), Err(NotANumber.into()));
        s.set(b("n"), i64::MAX.to_string().into_bytes()).unwrap();
        assert_eq!(s.add(b("n"), 1), Err(NotANumber.into()));
    }

    #[test]
    fn waiters_wake_with_their_last_key() {
        let mut s = Store::new(4096);
        s.set(b("a"), b("")).unwrap();
        let alone = s.bytes();
        assert_eq!(s.wait(1, vec![b("a")]), Ok(true));
        assert_eq!(s.wait(2, vec![b("a"), b("b"), b("c")]), Ok(false));
        assert_eq!(s.wait(3, vec![b("c")]), Ok(false));
        assert!(s.bytes() > alone);
        assert_eq!(s.set(b("b"), b("")).unwrap(), Vec::<WaiterId>::new());
        assert_eq!(s.append(b("c"), b"1").unwrap(), [2, 3]);
        assert_eq!(s.append(b("c"), b"2").unwrap(), Vec::<WaiterId>::new());
        assert_eq!(s.get(b"c"), b"12");
        assert_eq!(s.wait(4, vec![b("d")]), Ok(false));
        s.forget(4);
        assert_eq!(s.wait(5, vec![b("d"); 9]), Ok(false), "named often, held once");
        assert!(s.wait(6, vec![vec![0; 4096]]).is_err());
        s.forget(5);
        assert_eq!(s.add(b("d"), 1).unwrap().1, Vec::<WaiterId>::new());
        assert!(s.missing.is_empty() && s.waiters.is_empty());
    }

    proptest! {
        /// What it says it holds is what it holds, and never more than it may.
        #[test]
        fn bytes_are_counted(ops in proptest::collection::vec((0u8..6, 0usize..6, 0usize..200), 1..60)) {
            let mut s = Store::new(1500);
            for (op, key, size) in ops {
                let key = vec![b'k'; key];
                let value = vec![b'1'; size];
                match op {
                    0 => drop(s.set(key, value)),
                    1 => drop(s.append(key, &value)),
                    2 => drop(s.add(key, 3)),
                    3 => drop(s.wait(size as u64 % 3, vec![key, vec![b'x'; size % 5]])),
                    4 => s.forget(size as u64 % 3),
                    _ => drop(s.delete(&key)),
                }
                let values: usize = s.values.iter().map(|(k, v)| ENTRY + k.len() + v.len()).sum();
                let held = values + s.missing.values().flatten().map(|key| waiting_cost(key)).sum::<usize>();
                prop_assert_eq!(s.bytes(), held);
                prop_assert!(held <= 1500);
            }
        }
    }
}
