//! Questions for members of large communities that are no peers yet.
//!
//! Input: addresses of packets, sites that speak to this gateway, names that clients look up, and peers that were silent
//! for long. Output: batches for the session with the cloud, which answers with a netmap. The table decides, with the time
//! as an argument; questions are bounded, repeated at most once a second, and dropped when no session takes them.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use tokio::sync::Notify;

use crate::fair_share::crowded_place;
use crate::limits::{BucketRate, TokenBucket};

/// Questions of one kind that wait for a session; a further one is dropped, and its packet repeats it. The kinds take turns,
/// and within a kind the hosts of the site: one that scans delays no other, and names delay no packet.
const WAITING_MAX: usize = 128;
const KINDS: usize = 3;
/// A question is not repeated within this time, and not sent when it has waited longer than `STALE`.
const REPEAT: Duration = Duration::from_secs(1);
const STALE: Duration = Duration::from_secs(5);
/// Below the rate that the cloud takes, so that it drops none.
const PER_SECOND: u64 = 18;
const BURST: Duration = Duration::from_secs(3);
const BATCH_MAX: usize = 32;

/// A member of a large community, by one of the ways in which it is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PeerQuestion {
    /// The address of a packet, as on the wire.
    Address(IpAddr),
    /// The name of a site. Capital letters make no difference.
    Site(String),
    /// A site whose gateways need not be peers any more.
    Silent(String),
}

impl PeerQuestion {
    /// The place of its kind in `RequestTable::waiting`.
    fn kind(&self) -> usize {
        match self {
            PeerQuestion::Address(_) => 0,
            PeerQuestion::Site(_) => 1,
            PeerQuestion::Silent(_) => 2,
        }
    }
}

/// Shared by the planes of a gateway and the session of its role.
#[derive(Default, Debug)]
pub struct PeerRequests {
    table: Mutex<RequestTable>,
    wake: Notify,
}

impl PeerRequests {
    /// Queues a question of the gateway itself. Never blocks.
    pub fn ask(&self, question: PeerQuestion) {
        self.queue(None, question);
    }

    /// Queues a question that a packet or query of a host asks.
    pub fn ask_for(&self, host: IpAddr, question: PeerQuestion) {
        self.queue(Some(host), question);
    }

    fn queue(&self, host: Option<IpAddr>, question: PeerQuestion) {
        if self.lock().handle_question(host, question, Instant::now()) {
            self.wake.notify_one();
        }
    }

    /// Waits for questions, and returns those that may be sent now. May be dropped and called again.
    pub async fn next(&self) -> Vec<PeerQuestion> {
        loop {
            let due = {
                let (mut table, now) = (self.lock(), Instant::now());
                let batch = table.next_batch(now);
                if !batch.is_empty() {
                    return batch;
                }
                table.next_timeout()
            };
            match due {
                Some(due) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep(due) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, RequestTable> {
        self.table.lock_ignoring_poison()
    }
}

/// A question that no session has taken yet.
#[derive(Debug)]
struct WaitingQuestion {
    host: Option<IpAddr>,
    question: PeerQuestion,
    since: Instant,
}

#[derive(Default, Debug)]
struct RequestTable {
    waiting: [VecDeque<WaitingQuestion>; KINDS],
    /// The number of the last question that was sent for a host that has more questions waiting.
    served: [HashMap<Option<IpAddr>, u64>; KINDS],
    questions: u64,
    /// The kind of the next question that is sent.
    turn: usize,
    sent: HashMap<PeerQuestion, Instant>,
    bucket: TokenBucket,
    /// The time until the next question may be sent.
    pause: Option<Duration>,
}

impl RequestTable {
    /// Returns whether the question is new.
    fn handle_question(&mut self, host: Option<IpAddr>, question: PeerQuestion, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < REPEAT;
        let waiting = &mut self.waiting[question.kind()];
        waiting.retain(|known| now.saturating_duration_since(known.since) < STALE);
        let is_known = waiting.iter().any(|known| known.question == question);
        if is_known || self.sent.get(&question).is_some_and(is_recent) {
            return false;
        }
        if waiting.len() >= WAITING_MAX {
            match crowded_place(waiting.iter().map(|known| known.host), host) {
                Some(place) => drop(waiting.remove(place)),
                None => return false,
            }
        }
        waiting.push_back(WaitingQuestion { host, question, since: now });
        true
    }

    fn next_batch(&mut self, now: Instant) -> Vec<PeerQuestion> {
        self.pause = None;
        self.sent.retain(|_, at| now.saturating_duration_since(*at) < REPEAT);
        for waiting in &mut self.waiting {
            waiting.retain(|known| now.saturating_duration_since(known.since) < STALE);
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX {
            let turns = (0..KINDS).map(|step| (self.turn + step) % KINDS);
            let Some(kind) = turns.into_iter().find(|kind| !self.waiting[*kind].is_empty()) else { break };
            if let Err(wait) = self.bucket.try_take(1, BucketRate::new(PER_SECOND, BURST), now) {
                self.pause = wait;
                break;
            }
            let Some(question) = self.take_question(kind) else { break };
            self.turn = (kind + 1) % KINDS;
            self.sent.insert(question.clone(), now);
            batch.push(question);
        }
        batch
    }

    /// Takes the oldest question of the host whose turn it is: the one that was not served for longest.
    fn take_question(&mut self, kind: usize) -> Option<PeerQuestion> {
        let (waiting, served) = (&mut self.waiting[kind], &mut self.served[kind]);
        let last_served = |known: &WaitingQuestion| served.get(&known.host).copied().unwrap_or(0);
        let (place, _) = waiting.iter().enumerate().min_by_key(|(_, known)| last_served(known))?;
        let WaitingQuestion { host, question, .. } = waiting.remove(place)?;
        self.questions += 1;
        served.insert(host, self.questions);
        served.retain(|host, _| waiting.iter().any(|known| known.host == *host));
        Some(question)
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(number: usize) -> PeerQuestion {
        PeerQuestion::Site(format!("site-{number}"))
    }

    #[test]
    fn a_question_is_repeated_after_a_second_and_no_sooner() {
        let (mut table, begin) = (RequestTable::default(), Instant::now());
        assert!(table.handle_question(None, site(1), begin));
        assert!(!table.handle_question(None, site(1), begin), "it waits already");
        assert_eq!(table.next_batch(begin), [site(1)]);
        assert!(!table.handle_question(None, site(1), begin + REPEAT / 2));
        assert!(table.handle_question(None, site(1), begin + REPEAT));
        assert_eq!(table.next_batch(begin + REPEAT + STALE), [], "no session took it in time");
    }

    #[test]
    fn questions_of_one_kind_delay_no_other_kind() {
        let (mut table, begin) = (RequestTable::default(), Instant::now());
        for number in 0..1000 {
            table.handle_question(None, site(number), begin);
        }
        let address = PeerQuestion::Address([10, 0, 0, 1].into());
        assert!(table.handle_question(None, address.clone(), begin), "names leave room for an address");
        assert!(table.next_batch(begin)[..2].contains(&address));
        let is_sent = |table: &mut RequestTable, now| table.next_batch(now).contains(&address);
        while !table.next_batch(begin).is_empty() {}
        let later = begin + REPEAT;
        assert!(table.handle_question(None, address.clone(), later) && is_sent(&mut table, later));
    }

    #[test]
    fn questions_are_bounded_by_number_and_rate() {
        let (mut table, begin) = (RequestTable::default(), Instant::now());
        let taken = (0..1000).filter(|number| table.handle_question(None, site(*number), begin)).count();
        assert_eq!(taken, WAITING_MAX);
        let mut sent = 0;
        loop {
            let batch = table.next_batch(begin);
            assert!(batch.len() <= BATCH_MAX);
            sent += batch.len();
            if batch.is_empty() {
                break;
            }
        }
        assert_eq!(sent as u64, PER_SECOND * BURST.as_secs());
        assert!(table.next_timeout().is_some_and(|pause| pause <= Duration::from_secs(1)));
        assert_eq!(table.next_batch(begin + Duration::from_secs(1)).len() as u64, PER_SECOND);
    }
    #[test]
    fn a_host_that_scans_starves_no_other_host() {
        let (mut table, begin) = (RequestTable::default(), Instant::now());
        let hosts: [Option<IpAddr>; 3] = [7, 8, 9].map(|last| Some([10, 0, 0, last].into()));
        let [scanning, modest, late] = hosts;
        let address = |third: u8, last: u8| PeerQuestion::Address([10, 9, third, last].into());
        for number in 0..=255 {
            table.handle_question(scanning, address(0, number), begin);
        }
        for number in 0..3 {
            assert!(table.handle_question(modest, address(1, number), begin), "the queue is full");
        }
        assert_eq!(table.waiting[0].len(), WAITING_MAX);
        let first = table.next_batch(begin);
        assert!((0..3).all(|number| first[..6].contains(&address(1, number))), "in turns: {first:?}");
        while !table.next_batch(begin).is_empty() {}
        // The rate is used up, and the scan goes on.
        let now = begin + Duration::from_millis(500);
        assert!(table.handle_question(late, address(2, 1), now));
        assert_eq!(table.next_batch(now)[0], address(2, 1), "served before hosts that were served already");
        // Alone, a host may fill the queue, and gets no more than that.
        let mut table = RequestTable::default();
        let taken = (0..=255).filter(|number| table.handle_question(scanning, address(0, *number), begin));
        assert_eq!(taken.count(), WAITING_MAX);
        assert!(table.served.iter().all(|served| served.len() <= WAITING_MAX));
    }
}
