//! A voter whose log ends before what it once acknowledged: its store was lost or replaced.
//!
//! Raft assumes that this does not happen, and raft-rs panics at the voter and waits forever at the leader. Here
//! the voter is filled again like a new one. That is safe as long as a majority of the voters has kept its stores:
//! with one lost of three, both others must be intact. The voter has also forgotten its vote and may vote twice in
//! one term, and a change acknowledged by the leader and this voter alone is on the leader's disk only until this
//! or the third voter has it. Hence the warnings: an operator must know before a second store is lost.

use raft::{
    ProgressState, Raft, StateRole,
    eraftpb::{self as pb, MessageType},
};

use crate::{log_store::LogStore, raft_log::RaftLog};

/// At the voter: takes the commit index out of a heartbeat that has one past this log's end, and answers it.
///
/// The sender believes this log to agree with its own up to there. Since that is wrong, nothing says that what is
/// here agrees with it: no entry may become committed by such a heartbeat, not even up to the log's end.
pub(crate) fn distrust_commit<S: LogStore>(
    raft: &Raft<RaftLog<S>>,
    message: &mut pb::Message,
) -> Option<u64> {
    let is_heartbeat = message.get_msg_type() == MessageType::MsgHeartbeat;
    if !is_heartbeat || message.commit <= raft.raft_log.last_index() {
        return None;
    }
    let claimed = message.commit;
    message.commit = raft.raft_log.committed;
    Some(claimed)
}

/// At the leader: begins to fill a voter again that refuses what it once acknowledged. Answers whether `message`
/// said so; then it is dealt with.
///
/// A refusal that was held up may look the same: then the voter is asked once more than needed, and its
/// acknowledgements count again with its next answer. Forgetting an acknowledgement is always safe.
pub(crate) fn refill<S: LogStore>(raft: &mut Raft<RaftLog<S>>, message: &pb::Message) -> bool {
    let is_refusal = message.get_msg_type() == MessageType::MsgAppendResponse && message.reject;
    if !is_refusal || !leads_by(raft, message) {
        return false;
    }
    let Some(progress) = raft.mut_prs().get_mut(message.from) else { return false };
    // A voter that gets a snapshot is being filled already. A refusal hints at an entry where the logs may agree:
    // in a log that holds all it acknowledged, never one before those.
    if progress.state == ProgressState::Snapshot || message.reject_hint >= progress.matched {
        return false;
    }
    tracing::warn!(
        controller = message.from,
        acknowledged = progress.matched,
        log_end = message.reject_hint,
        "a controller's log ends before what it acknowledged: its disk was lost or replaced; it is filled again; \
         until then no other controller may lose its disk"
    );
    progress.become_probe();
    // What lies there up to the hint is unknown too: the probe compares it.
    progress.matched = 0;
    progress.next_idx = message.reject_hint + 1;
    progress.recent_active = true;
    raft.send_append(message.from);
    true
}

/// At the leader: whether the answer to a heartbeat leaves it open that the voter has lost its log, and raft-rs,
/// which believes it to have everything, would send it nothing before the next change.
pub(crate) fn is_in_doubt<S: LogStore>(raft: &Raft<RaftLog<S>>, message: &pb::Message) -> bool {
    if message.get_msg_type() != MessageType::MsgHeartbeatResponse || !leads_by(raft, message) {
        return false;
    }
    // The heartbeat told it to commit all it has; a voter that has it, did, unless the answer is an old one.
    raft.prs().get(message.from).is_some_and(|progress| {
        progress.matched == raft.raft_log.last_index() && message.commit < raft.raft_log.committed
    })
}

/// Whether this node leads in the message's term.
fn leads_by<S: LogStore>(raft: &Raft<RaftLog<S>>, message: &pb::Message) -> bool {
    raft.state == StateRole::Leader && raft.term == message.term
}
