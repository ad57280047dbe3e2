//! The outcomes of the last probes of a path, from which its loss is estimated. Pure.

/// The number of outcomes that are kept.
const OUTCOMES: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ProbeHistory {
    /// One bit per probe, the newest lowest: set when there was no reply.
    lost: u16,
    count: u8,
}

impl ProbeHistory {
    pub fn note(&mut self, is_answered: bool) {
        self.lost = self.lost << 1 | u16::from(!is_answered);
        self.count = (self.count + 1).min(OUTCOMES as u8);
    }

    /// Returns the lost probes in per cent. None: nothing was sent yet.
    pub fn loss(&self) -> Option<u32> {
        (self.count > 0).then(|| self.lost.count_ones() * 100 / u32::from(self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_that_of_the_last_probes() {
        let mut history = ProbeHistory::default();
        assert_eq!(history.loss(), None);
        let mut check = |outcomes: &[bool], expected: u32| {
            outcomes.iter().for_each(|answered| history.note(*answered));
            assert_eq!(history.loss(), Some(expected), "{outcomes:?}");
        };
        check(&[true], 0);
        check(&[false], 50);
        check(&[true, true], 25);
        check(&[false; 16], 100);
        check(&[true; 8], 50);
        check(&[true; 16], 0);
    }
}
