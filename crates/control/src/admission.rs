//! Which messages of other controllers reach raft-rs.
//!
//! raft-rs trusts its peers: it panics on a message that contradicts what a correct peer could send. A controller
//! must outlive a peer that is broken, so what raft-rs takes for granted is checked here first. What passes may
//! still be a lie that a vote or an acknowledgement can tell; Raft does not defend against that.

use std::collections::BTreeSet;

use raft::{
    Raft, StateRole,
    eraftpb::{self as pb, MessageType},
};
use semel_model::ControllerId;

use crate::{log_store::LogStore, raft_log::RaftLog};

/// The greatest term, inclusive: what a controller epoch can hold. raft-rs adds to terms without a check.
const TERM_MAX: u64 = i32::MAX as u64;

/// The greatest index, inclusive: raft-rs adds to indexes without a check.
const INDEX_MAX: u64 = i64::MAX as u64;

/// Why a message must not be given to raft-rs, or `Ok`.
pub(crate) fn check<S: LogStore>(
    raft: &Raft<RaftLog<S>>,
    voters: &BTreeSet<ControllerId>,
    message: &pb::Message,
) -> Result<(), &'static str> {
    if message.to != raft.id {
        return Err("it is for another controller");
    }
    if message.from == raft.id || !voters.contains(&ControllerId(message.from)) {
        return Err("it is not from another voter");
    }
    // To raft-rs a message without a term is its own node's and skips every check of terms.
    if message.term == 0 || message.term > TERM_MAX {
        return Err("its term is out of range");
    }
    // A commit index is compared, never added to.
    if message.index > INDEX_MAX || message.reject_hint > INDEX_MAX {
        return Err("its index is out of range");
    }
    if message.priority != 0 || message.deprecated_priority != 0 || message.request_snapshot != 0 {
        return Err("it uses what no controller uses");
    }
    match message.get_msg_type() {
        MessageType::MsgAppend => check_append(message),
        MessageType::MsgSnapshot => check_snapshot(voters, message),
        MessageType::MsgAppendResponse => {
            let is_of_this_leadership = raft.state == StateRole::Leader && raft.term == message.term;
            if is_of_this_leadership && !message.reject && message.index > raft.raft_log.last_index() {
                return Err("it acknowledges entries that do not exist");
            }
            Ok(())
        }
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            // A candidate asks only once its log is durable, and raft-rs insists on that when it wins.
            let log = &raft.raft_log;
            let is_candidate = matches!(raft.state, StateRole::Candidate | StateRole::PreCandidate);
            if is_candidate && log.persisted != log.last_index() {
                return Err("it is a vote that nobody asked for");
            }
            Ok(())
        }
        MessageType::MsgHeartbeat
        | MessageType::MsgHeartbeatResponse
        | MessageType::MsgRequestVote
        | MessageType::MsgRequestPreVote
        | MessageType::MsgTimeoutNow => Ok(()),
        // A node's own, which would bypass the log.
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        // Only leaders propose, ask for reads and hand leadership over: nothing is forwarded.
        | MessageType::MsgPropose
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp
        | MessageType::MsgTransferLeader => Err("no controller sends that kind"),
    }
}

/// Entries follow each other and what they are appended to, and their terms never fall.
fn check_append(message: &pb::Message) -> Result<(), &'static str> {
    // raft-rs gives term 0 to whatever lies outside its log: such an anchor would match far past the end.
    if (message.index == 0) != (message.log_term == 0) || message.log_term > message.term {
        return Err("its anchor's term is out of range");
    }
    let (mut index, mut term) = (message.index, message.log_term.max(1));
    for entry in message.get_entries() {
        if entry.index == 0 || entry.index - 1 != index || entry.index > INDEX_MAX {
            return Err("its entries do not follow each other");
        }
        if entry.term < term || entry.term > message.term {
            return Err("an entry's term is out of range");
        }
        if entry.get_entry_type() != pb::EntryType::EntryNormal {
            return Err("an entry changes the voters");
        }
        (index, term) = (entry.index, entry.term);
    }
    Ok(())
}

/// The snapshot is of something, and of this cluster.
fn check_snapshot(voters: &BTreeSet<ControllerId>, message: &pb::Message) -> Result<(), &'static str> {
    let meta = message.get_snapshot().get_metadata();
    if meta.index == 0 || meta.index > INDEX_MAX {
        return Err("its snapshot's index is out of range");
    }
    if meta.term == 0 || meta.term > message.term {
        return Err("its snapshot's term is out of range");
    }
    let conf = meta.get_conf_state();
    let theirs: BTreeSet<ControllerId> = conf.get_voters().iter().copied().map(ControllerId).collect();
    let has_others = !conf.get_learners().is_empty()
        || !conf.get_voters_outgoing().is_empty()
        || !conf.get_learners_next().is_empty()
        || conf.auto_leave;
    if theirs != *voters || conf.get_voters().len() != voters.len() || has_others {
        return Err("its snapshot has other voters");
    }
    Ok(())
}
