//! What a broker finds on its disk: the files of one partition, and those of a log directory.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use semel_env::{Disk, DiskFile, Open, sim::SimDisk};
use semel_log::{
    AbortedTransaction, CleanRequest, CleanupPolicy, Config, DirectoryId, Identity, Known, LogDir, Opened,
    PartitionLog, PartitionName, ReadError,
};
use semel_model::{
    BrokerId, LeaderEpoch, Millis, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence, Timestamp,
    TopicId, TopicName,
};
use semel_record::{Batch, BatchBuilder, BatchHeader, BatchHeaders, Batches, Outcome, ProducerSnapshotEntry};

use crate::{
    input::{Input, Section},
    record::{marker, reseal_all},
};

type Log = PartitionLog<SimDisk>;

const DIR: &str = "/data/t-0";
const NOW: Timestamp = Timestamp(1_000_000);
/// Steps after which a walk through a log of at most a few hundred KiB counts as endless.
const STEPS_MAX: usize = 20_000;

/// Kinds of sections of [`log_files`] that are named after an offset.
const SEGMENT_KINDS: [&str; 10] = [
    "log",
    "index",
    "timeindex",
    "txnindex",
    "snapshot",
    "log.cleaned",
    "index.cleaned",
    "timeindex.cleaned",
    "txnindex.cleaned",
    "log.deleted",
];
/// And those that are not.
const OTHER_KINDS: [&str; 6] = [
    "leader-epoch-checkpoint",
    "semel-corrupt-ranges",
    "semel-compaction-swap",
    "partition.metadata",
    "leader-epoch-checkpoint.tmp",
    "somebody-elses-file",
];
/// Kinds of sections of [`checkpoints`].
const CHECKPOINTS: [&str; 9] = [
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
    "t-0/partition.metadata",
    "t-1/partition.metadata",
    "meta.properties.tmp",
];

/// A partition's directory: options (u8), recovery point (u16), log start (u16), then its files.
///
/// Opens the log, reads all of it, looks things up, and does to it what a broker does. Whatever the files hold,
/// nothing panics or goes on for ever, and where recovery promised to check batches, none that is served has a
/// wrong checksum.
pub fn log_files(data: &[u8]) {
    let mut input = Input::new(data);
    let options = Options(input.u8());
    let (point, start) = (i64::from(input.u16()), i64::from(input.u16()));
    let known = Known {
        recovery_point: options.has(0).then_some(Offset(point)),
        log_start_offset: Offset(if options.has(1) { start } else { 0 }),
        clean: options.has(2),
    };
    let disk = new_disk();
    let mut segments = BTreeMap::new();
    while let Some(section) = input.section() {
        store(&disk, section, &mut segments);
    }
    // A segment that reaches into the next one's offsets is a broken rule of names, not broken bytes: which of the two
    // is served may differ from start to start.
    let overlap = segments.iter().zip(segments.iter().skip(1)).any(|((_, end), (next, _))| end > next);
    let Some(mut log) = open(&disk, options, known) else { return };
    let check_from = if known.recovery_point.is_none() {
        Some(Offset(i64::MIN))
    } else {
        // After a clean stop all but the last batches are taken on trust.
        known.recovery_point.filter(|_| !known.clean)
    };
    let before = read_all(&log, log.log_start_offset(), options.read_size(), check_from);
    look_up(&log);

    // What was served must be there again after a power cut, and be all that is there.
    let known_good = known.recovery_point.is_none() && !overlap;
    if known_good {
        drop(log);
        disk.crash_losing_all();
        log = open(&disk, options, known).expect("a log that could be opened can be opened again");
        let again = read_all(&log, log.log_start_offset(), 100, check_from);
        assert_eq!(offsets(&again), offsets(&before), "a second start served other batches than the first");
        assert!(again == before, "a second start served other bytes than the first");
    }

    // At the last offset of all there is no room; no log gets there, but for the name of a file here.
    if options.has(3) && !log.has_failed() && log.log_end_offset().get() < i64::MAX - 1000 {
        append(&mut log);
    }
    if options.has(4) {
        clean(&mut log);
    }
    if options.has(5) {
        let middle = Offset(log.log_start_offset().get().midpoint(log.log_end_offset().get()));
        let _ = log.truncate_to(middle, NOW);
        let _ = log.delete_before(middle, log.log_end_offset());
        let _ = log.enforce_retention(NOW, log.log_end_offset(), &Vec::new);
    }
    let served = read_all(&log, log.log_start_offset(), options.read_size(), None);
    look_up(&log);
    let (end, log_start) = (log.log_end_offset(), log.log_start_offset());
    if log.close(&producers()).is_err() || log.has_failed() {
        return;
    }
    let _ = log.remove_due(NOW);
    drop(log);
    disk.kill();
    let known = Known { recovery_point: Some(end), log_start_offset: log_start, clean: true };
    let Some(log) = open(&disk, options, known) else { panic!("a closed log can be opened again") };
    // Of a log that was not checked as a whole, this start may be the first to meet some damage.
    if known_good && log.corrupt_ranges().is_empty() {
        assert_eq!((log.log_start_offset(), log.log_end_offset()), (log_start, end));
        let again = read_all(&log, log_start, options.read_size(), None);
        assert_eq!(offsets(&again), offsets(&served), "closing a log changed it");
        assert!(again == served, "closing a log changed its bytes");
    }
}

#[derive(Clone, Copy)]
struct Options(u8);

impl Options {
    fn has(self, bit: u8) -> bool {
        self.0 >> bit & 1 != 0
    }

    fn read_size(self) -> u32 {
        if self.has(7) { 1 << 20 } else { 300 }
    }

    /// Small segments and a dense index, so that few batches reach every path; or the sizes of every day.
    fn config(self) -> Config {
        let (segment_bytes, index_interval_bytes) = if self.has(6) { (1 << 30, 4096) } else { (1000, 100) };
        Config {
            segment_bytes,
            index_interval_bytes,
            file_delete_delay_ms: Millis(0),
            delete_retention_ms: Millis(0),
            retention_ms: Some(Millis(500_000)),
            cleanup_policy: CleanupPolicy { delete: true, compact: self.has(4) },
            decompressed_bytes_max: 1 << 20,
            ..Config::default()
        }
    }
}

fn new_disk() -> SimDisk {
    let disk = SimDisk::new(1);
    disk.set_now(NOW);
    disk.create_dir_all(Path::new(DIR)).expect("the disk has no faults");
    for dir in ["/", "/data"] {
        disk.sync_dir(Path::new(dir)).expect("the disk has no faults");
    }
    disk
}

/// Writes a file; notes the ends of segments by their base offsets.
fn store(disk: &SimDisk, section: Section, segments: &mut BTreeMap<i64, i64>) {
    let kinds = SEGMENT_KINDS.len() + OTHER_KINDS.len();
    let kind = usize::from(section.kind) % kinds;
    let base = section.offset();
    let name = match SEGMENT_KINDS.get(kind) {
        Some(kind) => format!("{base:020}.{kind}"),
        None => OTHER_KINDS[kind - SEGMENT_KINDS.len()].to_owned(),
    };
    let mut bytes = section.bytes;
    if section.repair && kind == 0 {
        reseal_all(&mut bytes);
    }
    if kind == 0 {
        let headers = BatchHeaders::new(&bytes).map_while(Result::ok);
        let end = headers.map(|(_, header)| header.next_offset().get()).max();
        segments.insert(base, end.unwrap_or(i64::MIN));
    }
    if section.repair && SEGMENT_KINDS.get(kind) == Some(&"snapshot") && bytes.len() > 10 {
        let crc = crc32c::crc32c(&bytes[6..]);
        bytes[2..6].copy_from_slice(&crc.to_be_bytes());
    }
    write(disk, &Path::new(DIR).join(name), &bytes);
}

fn write(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, Open::Truncate).expect("the disk has no faults");
    file.write_all_at(bytes, 0).expect("the disk has no faults");
    file.sync_all().expect("the disk has no faults");
    disk.sync_dir(path.parent().unwrap_or(Path::new("/"))).expect("the disk has no faults");
}

fn open(disk: &SimDisk, options: Options, known: Known) -> Option<Log> {
    let opened = PartitionLog::open(disk.clone(), PathBuf::from(DIR), options.config(), known, NOW);
    match opened {
        Ok((log, _)) => {
            assert!(log.log_start_offset() <= log.log_end_offset());
            assert!(log.flushed_end() <= log.log_end_offset());
            Some(log)
        }
        Err(ReadError::Storage(_)) => None,
        Err(error) => panic!("opening a log fails for its disk only: {error}"),
    }
}

/// All batches from `offset` on, passing over damage. Those read from `check_from` on must be whole and right; with
/// `None` nothing is promised of the bytes.
fn read_all(log: &Log, offset: Offset, max_bytes: u32, check_from: Option<Offset>) -> Vec<Bytes> {
    let mut found = Vec::new();
    let mut at = offset;
    for _ in 0..STEPS_MAX {
        match log.read(at, max_bytes, log.log_end_offset(), true) {
            Ok(slice) if slice.is_empty() => {
                assert!(slice.next_offset == at);
                // Nothing before the end but what compaction left out.
                return found;
            }
            Ok(slice) => {
                assert!(slice.next_offset > at, "reading stands still at {at}");
                assert!(slice.next_offset <= log.log_end_offset());
                let bytes = slice.read().expect("a slice lies in its file");
                let mut walk = Batches::new(bytes);
                for batch in walk.by_ref() {
                    match (batch, check_from) {
                        (Ok(batch), Some(from)) if at >= from => {
                            batch.verify_crc().expect("no batch with a wrong checksum is served");
                            found.push(batch.bytes);
                        }
                        (Ok(batch), _) => found.push(batch.bytes),
                        (Err(error), Some(from)) if at >= from => panic!("a bad batch was served: {error}"),
                        (Err(_), _) => {}
                    }
                }
                assert!(
                    walk.remainder().is_empty() || check_from.is_none_or(|from| at < from),
                    "a slice held a partial batch"
                );
                at = slice.next_offset;
            }
            Err(ReadError::Corrupt { from, to }) => {
                // It may begin later, if nothing is left of the offsets before it.
                assert!(at < to, "damage from {from} to {to} was met at {at}");
                at = to;
                if at > log.log_end_offset() {
                    return found;
                }
            }
            Err(error) => panic!("cannot read {at}: {error}"),
        }
    }
    panic!("reading does not end");
}

/// Where batches begin, for a message that a person can read.
fn offsets(batches: &[Bytes]) -> Vec<i64> {
    batches
        .iter()
        .filter_map(|batch| BatchHeader::parse(batch).ok())
        .map(|header| header.base_offset.get())
        .collect()
}

/// Every look-up there is; they may fail, but not panic.
fn look_up(log: &Log) {
    let (start, end) = (log.log_start_offset(), log.log_end_offset());
    for timestamp in [i64::MIN, -1, 0, NOW.get(), i64::MAX] {
        if let Ok(Some(found)) = log.offset_for_timestamp(Timestamp(timestamp)) {
            assert!(found.offset >= start && found.timestamp >= Timestamp(timestamp));
        }
    }
    let _ = log.max_timestamp();
    for max in [0, 1000] {
        if let Ok(aborted) = log.aborted_transactions(start, end, max) {
            assert!(aborted.len() <= max);
        }
    }
    for epoch in [-1, 0, 1, i32::MAX] {
        let _ = log.end_offset_for_epoch(LeaderEpoch(epoch));
    }
    for offset in [start, start.next(), end, Offset(-1), Offset(i64::MAX)] {
        let _ = (log.epoch_at(offset), log.headers_before(offset, 500));
    }
    let known = log.producers();
    let mut batches = 0;
    let _ = log.replay(known.offset, &mut |_, _| {
        batches += 1;
        assert!(batches < STEPS_MAX, "replaying does not end");
    });
}

fn append(log: &mut Log) {
    for count in [1, 3, 40] {
        let (base_offset, epoch) = (log.log_end_offset(), log.latest_epoch().max(LeaderEpoch(0)));
        let batch = keyed(NOW, count);
        let Ok(appended) = log.append(&batch, base_offset, epoch, NOW, &producers) else { return };
        assert_eq!(appended.base_offset, base_offset);
        let slice = log.read(base_offset, 1 << 20, log.log_end_offset(), true).expect("it was just written");
        let bytes = slice.read().expect("a slice lies in its file");
        assert_eq!(bytes[16..], batch.bytes[16..]);
    }
}

fn clean(log: &mut Log) {
    let request = CleanRequest {
        now: NOW,
        last_stable_offset: log.log_end_offset(),
        producers: producers(),
        map_bytes_max: 1 << 16,
        hash_seed: [1, 2],
        force: true,
    };
    let Ok(Some(plan)) = log.plan_cleaning(request) else { return };
    let mut steps = 0;
    let mut go_on = || {
        steps += 1;
        assert!(steps < STEPS_MAX, "cleaning does not end");
        true
    };
    if let Ok(cleaned) = plan.run(&mut go_on) {
        let _ = log.install_cleaned(cleaned);
    }
}

fn producers() -> Vec<ProducerSnapshotEntry> {
    vec![ProducerSnapshotEntry {
        producer_id: ProducerId(9),
        producer_epoch: ProducerEpoch(1),
        last_sequence: Sequence(3),
        last_offset: Offset(12),
        offset_delta: 1,
        timestamp: NOW,
        coordinator_epoch: semel_model::CoordinatorEpoch(0),
        current_txn_first_offset: Some(Offset(11)),
    }]
}

fn keyed(timestamp: Timestamp, count: usize) -> Batch {
    let mut builder = BatchBuilder::new();
    for at in 0..count {
        let key = format!("k{}", at % 3);
        builder.push(timestamp, Some(key.as_bytes()), (at % 4 != 3).then_some(&b"some value"[..]), &[]);
    }
    builder.build().expect("a few records make a batch")
}

/// A log directory: options (u8), then its files.
pub fn checkpoints(data: &[u8]) {
    let mut input = Input::new(data);
    let options = Options(input.u8());
    let disk = new_disk();
    for dir in ["t-1", "gone-0.0123456789abcdef0123456789abcdef-delete", "other", "t-01"] {
        disk.create_dir_all(&Path::new("/data").join(dir)).expect("the disk has no faults");
    }
    while let Some(section) = input.section() {
        let name = CHECKPOINTS[usize::from(section.kind) % CHECKPOINTS.len()];
        write(&disk, &Path::new("/data").join(name), &section.bytes);
    }
    let identity = Identity {
        cluster_id: options.has(0).then(|| "c1".to_owned()),
        node_id: BrokerId(1),
        new_directory_id: DirectoryId::from_bytes([7; 16]),
    };
    let Some((mut dir, opened)) = open_dir(&disk, &identity) else { return };
    assert_eq!(dir.partition_count(), opened.partitions.len());
    let same = |before: &Opened, after: &Opened| {
        assert_eq!(before.recovery_points, after.recovery_points);
        assert_eq!(before.log_starts, after.log_starts);
        assert_eq!(before.high_watermarks, after.high_watermarks);
        assert_eq!(before.cleaned, after.cleaned);
        assert_eq!(before.partitions, after.partitions);
    };
    dir.write_recovery_points(&opened.recovery_points).expect("the disk has no faults");
    dir.write_log_starts(&opened.log_starts).expect("the disk has no faults");
    dir.write_high_watermarks(&opened.high_watermarks).expect("the disk has no faults");
    dir.write_cleaned(&opened.cleaned).expect("the disk has no faults");
    let epoch = opened.broker_epoch.unwrap_or(semel_model::BrokerEpoch(3));
    dir.mark_clean(epoch).expect("the disk has no faults");
    drop(dir);
    disk.crash_losing_all();
    let (reopened, again) = open_dir(&disk, &identity).expect("a directory that was written can be opened");
    dir = reopened;
    same(&opened, &again);
    assert!(again.clean && again.damaged_checkpoints.is_empty() && again.broker_epoch == Some(epoch));
    let name =
        PartitionName { topic: TopicName::new("t").expect("a good name"), partition: PartitionIndex(1) };
    if dir.create_partition(&name, TopicId::from_bytes([1; 16])).is_ok() {
        let doomed = dir.doom_partition(&name, 5).expect("the disk has no faults");
        dir.remove_doomed(&doomed).expect("the disk has no faults");
    }
    let _ = dir.bind_cluster("c2");
}

fn open_dir(disk: &SimDisk, identity: &Identity) -> Option<(LogDir<SimDisk>, Opened)> {
    LogDir::open(disk.clone(), "/data".into(), identity).ok()
}

/// For the seeds: inputs of [`log_files`], from logs as this code writes them.
pub(crate) fn log_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (name, bits) in [("small", 0_u8), ("compact", 1 << 4), ("large", 1 << 6)] {
        let options = Options(bits);
        let disk = new_disk();
        let mut log = open(&disk, options, Known::default()).expect("an empty log can be opened");
        fill(&mut log);
        let torn = stored(&disk);
        if bits & 1 << 4 != 0 {
            // Stopped in the middle of putting new segments in place.
            disk.halt_after(20);
            clean(&mut log);
            disk.heal();
            let swap = input(bits, 0, &stored(&disk));
            seeds.push((format!("{name}-swap"), swap));
            continue;
        }
        let end = u16::try_from(log.log_end_offset().get()).unwrap_or(0);
        log.close(&producers()).expect("the disk has no faults");
        let closed = stored(&disk);
        for (how, known) in [("lost", 0_u8), ("unclean", 1), ("clean", 1 | 4)] {
            let all = if known == 0 { 0x38 } else { 0 };
            seeds.push((format!("{name}-{how}"), input(bits | known | all, end, &closed)));
            seeds.push((format!("{name}-{how}-torn"), input(bits | known | 0x80, end / 2, &torn)));
        }
    }
    seeds
}

/// Three rounds of plain batches and transactions, two of which are aborted, under several leaderships.
fn fill(log: &mut Log) {
    let transaction = |timestamp: Timestamp| {
        let mut builder =
            BatchBuilder::new().producer(ProducerId(9), ProducerEpoch(1), Sequence(0)).transactional();
        builder.push(timestamp, Some(b"k1"), Some(b"v"), &[]);
        builder.build().expect("one record makes a batch")
    };
    for round in 0..3 {
        let now = NOW.plus(Millis(i64::from(round)));
        let outcome = if round == 1 { Outcome::Commit } else { Outcome::Abort };
        let begun = add(log, &keyed(now, 3), 2 * round).next();
        add(log, &transaction(now), 2 * round);
        add(log, &keyed(NOW, 1), 2 * round);
        let ended = add(log, &marker(outcome, 9), 2 * round + 1);
        if outcome == Outcome::Abort {
            let transaction = AbortedTransaction {
                producer_id: ProducerId(9),
                first_offset: begun,
                last_offset: ended,
                last_stable_offset: ended.next(),
            };
            log.append_aborted(&transaction).expect("the disk has no faults");
        }
        add(log, &keyed(now.plus(Millis(50)), 5), 2 * round + 1);
    }
}

/// The offset of the batch's last record.
fn add(log: &mut Log, batch: &Batch, leader_epoch: i32) -> Offset {
    let end = log.log_end_offset();
    let appended = log.append(batch, end, LeaderEpoch(leader_epoch), NOW, &producers);
    appended.expect("the disk has no faults").log_end_offset.plus(-1)
}

/// The files of the partition's directory as sections.
fn stored(disk: &SimDisk) -> Vec<Section> {
    let dir = Path::new(DIR);
    let mut sections = Vec::new();
    for entry in disk.read_dir(dir).expect("the disk has no faults") {
        let bytes = disk.read(&dir.join(&entry.name), 1 << 20).expect("the disk has no faults");
        let segment = entry.name.split_once('.').and_then(|(digits, kind)| {
            Some((SEGMENT_KINDS.iter().position(|known| *known == kind)?, digits.parse::<u16>().ok()?))
        });
        let other =
            || Some((SEGMENT_KINDS.len() + OTHER_KINDS.iter().position(|known| *known == entry.name)?, 0));
        let Some((kind, base)) = segment.or_else(other) else { continue };
        sections.push(Section { kind: kind as u8, repair: kind == 0 || kind == 4, base, bytes });
    }
    sections
}

fn input(options: u8, point: u16, sections: &[Section]) -> Vec<u8> {
    let mut bytes = vec![options];
    bytes.extend_from_slice(&point.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    for section in sections {
        section.write(&mut bytes);
    }
    bytes
}

/// For the seeds: inputs of [`checkpoints`].
pub(crate) fn checkpoint_seeds() -> Vec<(String, Vec<u8>)> {
    let good: [&str; 9] = [
        "#\ncluster.id=c1\ndirectory.id=BwcHBwcHBwcHBwcHBwcHBw\nnode.id=1\nversion=1\n",
        "0\n2\nt 0 9\na-b.c 12 1042\n",
        "0\n1\nt 0 3\n",
        "0\n1\nt 0 7\n",
        "0\n0\n",
        "{\"version\":\"0\",\"broker_epoch\":\"42\"}",
        "version: 0\ntopic_id: AQEBAQEBAQEBAQEBAQEBAQ",
        "version: 0\ntopic_id: AQEBAQEBAQEBAQEBAQEBAQ",
        "half",
    ];
    let section = |kind: usize, text: &str| Section {
        kind: kind as u8,
        repair: false,
        base: 0,
        bytes: text.as_bytes().to_vec(),
    };
    let mut all = vec![1];
    let mut seeds = Vec::new();
    for (kind, text) in good.iter().enumerate() {
        section(kind, text).write(&mut all);
        let mut one = vec![0];
        section(kind, text).write(&mut one);
        seeds.push((CHECKPOINTS[kind].replace('/', "-").trim_start_matches('.').to_owned(), one));
    }
    seeds.push(("all".to_owned(), all));
    seeds
}
