//! x
use semel_env::{Disk, RealDisk};
use semel_log::*; use semel_model::*; use semel_record::*;
fn main() {
    let dir = std::path::PathBuf::from("/tmp/t-c/speed/t-0");
    let _ = std::fs::remove_dir_all(&dir);
    RealDisk.create_dir_all(&dir).unwrap();
    let now = Timestamp(1_700_000_000_000);
    let cpu = || { let t = std::fs::read_to_string("/proc/self/schedstat").unwrap(); t.split(' ').next().unwrap().parse::<u64>().unwrap() };
    for (size, n) in [(100_usize, 1_000_000_i64), (16_000, 60_000), (1_000_000, 1000)] {
        let mut b = BatchBuilder::new(); b.push(now, None, Some(&vec![1; size]), &[]); let b = b.build().unwrap();
        let (mut log, _) = PartitionLog::open(RealDisk, dir.clone(), Config::default(), Known::default(), now).unwrap();
        log.truncate_fully_and_start_at(Offset(0), now).unwrap();
        let t = cpu();
        for at in 0..n { log.append(&b, Offset(at), LeaderEpoch(0), now, &|| vec![]).unwrap(); }
        let d = cpu() - t; println!("append {size}: {} ns each, {:.2} s/GB", d / n as u64, d as f64 / (n as f64 * (size + 70) as f64));
        let t = cpu(); let mut at = Offset(0); let mut reads = 0; let end = log.log_end_offset();
        while at < end { let s = log.read(at, 1 << 20, end, true).unwrap(); at = s.next_offset; reads += 1; }
        println!("  read seq 1MiB: {} ns each ({reads})", (cpu() - t) / reads);
        let t = cpu(); for k in 0..100_000_i64 { let o = Offset((k * 7919) % end.get()); log.read(o, 1 << 16, end, true).unwrap(); }
        println!("  read random 64K: {} ns each", (cpu() - t) / 100_000);
        log.remove_due(Timestamp(i64::MAX)).unwrap();
        log.close(&[]).unwrap(); let end = log.log_end_offset(); drop(log);
        let t = cpu(); let (log, _) = PartitionLog::open(RealDisk, dir.clone(), Config::default(), Known { recovery_point: Some(end), clean: true, ..Known::default() }, now).unwrap();
        println!("  clean open {} us", (cpu() - t) / 1000); drop(log);
        let t = cpu(); let (_log, r) = PartitionLog::open(RealDisk, dir.clone(), Config::default(), Known { recovery_point: Some(end), clean: false, ..Known::default() }, now).unwrap();
        println!("  unclean open at end {} us checked {}", (cpu() - t) / 1000, r.checked_bytes);
    }
}
