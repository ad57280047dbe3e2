//! Commands of other tasks to a session, in order, until it takes them.
//!
//! A channel would do, but keeps room for 32 words from the first day on: two kilobytes for each of twenty
//! thousand sessions that are told something once in an hour. This holds nothing while it is empty.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::session_loop::SessionCommand;
use causeway_api::sync::MutexExt;

/// More commands than arrive while a session is busy with a slow edge.
const COMMANDS_MAX: usize = 8;

/// Written by any task, read by the one task of the session.
#[derive(Debug, Default)]
pub struct SessionMailbox {
    commands: Mutex<VecDeque<SessionCommand>>,
    filled: Notify,
}

impl SessionMailbox {
    /// False when it is full: the command is dropped.
    pub fn put(&self, command: SessionCommand) -> bool {
        let mut commands = self.commands.lock_ignoring_poison();
        if commands.len() >= COMMANDS_MAX {
            return false;
        }
        commands.push_back(command);
        drop(commands);
        self.filled.notify_one();
        true
    }

    /// The next command. May be dropped while it waits.
    pub async fn next(&self) -> SessionCommand {
        loop {
            if let Some(command) = self.take() {
                return command;
            }
            // Remembers one call that came before we waited.
            self.filled.notified().await;
        }
    }

    fn take(&self) -> Option<SessionCommand> {
        let mut commands = self.commands.lock_ignoring_poison();
        let command = commands.pop_front();
        if commands.is_empty() {
            *commands = VecDeque::new();
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn commands_come_in_order_and_a_full_box_takes_no_more() {
        let mailbox = SessionMailbox::default();
        for number in 0..COMMANDS_MAX as u8 {
            assert!(mailbox.put(SessionCommand::Send(Bytes::copy_from_slice(&[number]))));
        }
        assert!(!mailbox.put(SessionCommand::Send(Bytes::new())));
        for number in 0..COMMANDS_MAX as u8 {
            assert!(matches!(mailbox.next().await, SessionCommand::Send(said) if said[..] == [number]));
        }
        assert_eq!(mailbox.commands.lock().unwrap().capacity(), 0, "an idle session holds nothing");
        let waits = async { mailbox.next().await };
        let says = async {
            tokio::task::yield_now().await;
            assert!(mailbox.put(SessionCommand::Send(Bytes::new())));
        };
        let (command, ()) = tokio::join!(waits, says);
        assert!(matches!(command, SessionCommand::Send(_)));
    }
}
