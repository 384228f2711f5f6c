//! Times as people write them: RFC 3339, in UTC.

use semel_model::Timestamp;

const DAY_MS: i64 = 86_400_000;

/// `2026-11-29T21:05:07.250Z`.
pub(crate) fn format(time: Timestamp) -> String {
    let (days, rest) = (time.get().div_euclid(DAY_MS), time.get().rem_euclid(DAY_MS));
    let (year, month, day) = civil(days);
    let (seconds, ms) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Milliseconds since the Unix epoch, or RFC 3339 with `Z` or an offset; without either it is UTC, without a time of
/// day it is midnight.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    if let Ok(ms) = text.parse::<i64>() {
        return Some(Timestamp(ms));
    }
    let (date, time) = match text.split_once(['T', 't', ' ']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let [year, month, day] = numbers(date, '-')?;
    let month_days = match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=month_days).contains(&day) || !(0..=9999).contains(&year) {
        return None;
    }
    let midnight = days(year, month, day) * DAY_MS;
    let Some(time) = time else { return Some(Timestamp(midnight)) };
    let (time, offset_minutes) = match time.strip_suffix(['Z', 'z']) {
        Some(time) => (time, 0),
        None => match time.find(['+', '-']) {
            Some(at) => {
                let [hours, minutes] = numbers(&time[at + 1..], ':')?;
                let minutes = hours * 60 + minutes;
                (&time[..at], if time[at..].starts_with('-') { -minutes } else { minutes })
            }
            None => (time, 0),
        },
    };
    let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = match whole.matches(':').count() {
        1 => {
            let [hour, minute] = numbers(whole, ':')?;
            [hour, minute, 0]
        }
        _ => numbers(whole, ':')?,
    };
    if hour > 23
        || minute > 59
        || second > 59
        || fraction.is_empty()
        || !fraction.bytes().all(|c| c.is_ascii_digit())
    {
        return None;
    }
    let ms: i64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let seconds = hour * 3600 + minute * 60 + second - offset_minutes * 60;
    Some(Timestamp(midnight + seconds * 1000 + ms))
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let parts: Vec<i64> = text
        .split(separator)
        .map(|part| {
            let digits = !part.is_empty() && part.len() <= 4 && part.bytes().all(|c| c.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        })
        .collect::<Option<_>>()?;
    parts.try_into().ok()
}

/// Days since 1970-01-01 of a date of the Gregorian calendar. Years begin in March here, so that the leap day is the
/// last of its year (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(format(Timestamp(ms)), text);
            assert_eq!(parse(text), Some(Timestamp(ms)));
        }
    }

    #[test]
    fn shorter_and_shifted_forms_are_read_and_nonsense_is_not() {
        for (text, ms) in [
            ("1700000000123", 1_700_000_000_123),
            ("2023-11-14", 1_699_920_000_000),
            ("2023-11-14T22:13", 1_699_999_980_000),
            ("2023-11-14 22:13:20", 1_700_000_000_000),
            ("2023-11-14T23:13:20.1+01:00", 1_700_000_000_100),
            ("2023-11-14T17:13:20.123456-05:00", 1_700_000_000_123),
        ] {
            assert_eq!(parse(text), Some(Timestamp(ms)), "{text}");
        }
        for bad in [
            "",
            "now",
            "2023-13-01",
            "2023-02-29",
            "2023-11-14T25:00",
            "2023-11-14T1",
            "2023-11-14T10:00:00.",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
