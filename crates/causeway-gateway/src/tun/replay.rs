//! The window of packet counters that were received, against replayed packets (RFC 6479).

/// Counters that may arrive late, in bits. A train of datagrams over several paths is reordered by less.
const WINDOW_BITS: u64 = 2048;
const WORDS: usize = (WINDOW_BITS / 64) as usize + 1;

/// The counters received so far. Only counters of authentic packets are entered.
pub struct ReplayWindow {
    next: u64,
    words: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> ReplayWindow {
        ReplayWindow { next: 0, words: [0; WORDS] }
    }
}

impl ReplayWindow {
    /// Tells whether a counter is new, before its packet is opened.
    pub fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            return true;
        }
        if self.next - counter > WINDOW_BITS {
            return false;
        }
        let (word, bit) = place(counter);
        self.words[word] & bit == 0
    }

    /// Enters the counter of an authentic packet. False: it was entered before.
    pub fn enter(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) {
            return false;
        }
        if counter >= self.next {
            // Words between the old and the new end hold counters of an earlier round.
            let (from, to) = (self.next.wrapping_sub(1) / 64, counter / 64);
            let from = if self.next == 0 { 0 } else { from };
            for word in (from + 1..=to).take(WORDS) {
                self.words[(word % WORDS as u64) as usize] = 0;
            }
            if to - from >= WORDS as u64 {
                self.words = [0; WORDS];
            }
            self.next = counter + 1;
        }
        let (word, bit) = place(counter);
        self.words[word] |= bit;
        true
    }
}

fn place(counter: u64) -> (usize, u64) {
    (((counter / 64) % WORDS as u64) as usize, 1 << (counter % 64))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_counter_is_taken_once_and_old_ones_never(
            steps in proptest::collection::vec(prop_oneof![0_i64..3, -70_i64..70, -3000_i64..5000], 1..400),
        ) {
            let (mut window, mut seen, mut counter) = (ReplayWindow::default(), HashSet::new(), 0_i64);
            let mut greatest = None;
            for step in steps {
                counter = (counter + step).max(0);
                let number = counter as u64;
                let too_old = greatest.is_some_and(|greatest: u64| greatest + 1 > number + WINDOW_BITS);
                let expected = !too_old && !seen.contains(&number);
                prop_assert_eq!(window.is_new(number), expected);
                prop_assert_eq!(window.enter(number), expected);
                seen.insert(number);
                greatest = greatest.max(Some(number));
            }
        }
    }
}
