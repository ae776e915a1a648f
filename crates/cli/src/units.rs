//! Times, sizes and amounts as users write and read them: `30s`, `4GiB`, `licence=2`.

use std::str::FromStr;
use std::time::Duration;

/// A time: `250ms`, `30s`, `10m`, `2h`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;
    fn from_str(text: &str) -> Result<Time, String> {
        let (number, unit) = split(text)?;
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(format!("{unit:?} is not a unit of time: expected ms, s, m, h or d")),
        };
        Duration::try_from_secs_f64(number * seconds)
            .map(Time)
            .map_err(|_| "the time is too long".to_owned())
    }
}

/// A size: `1024`, `512MiB`, `4GB`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Bytes, String> {
        let (number, unit) = split(text)?;
        let factor: f64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "ki" | "kib" => 1024.0,
            "mi" | "mib" => 1024.0 * 1024.0,
            "gi" | "gib" => 1024.0 * 1024.0 * 1024.0,
            "ti" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => {
                return Err(format!(
                    "{unit:?} is not a unit of size: expected KiB, MiB, GiB or TiB"
                ));
            }
        };
        let bytes = number * factor;
        if bytes < 9e18 { Ok(Bytes(bytes as u64)) } else { Err("the size is too large".into()) }
    }
}

/// A number that is not negative: `2`, `0.5`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Count(pub f64);

impl FromStr for Count {
    type Err = String;
    fn from_str(text: &str) -> Result<Count, String> {
        let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Count).ok_or_else(|| "expected a number such as 2 or 0.5".to_owned())
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An amount of a named resource: `licence=2`.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedAmount {
    pub name: String,
    pub amount: f64,
}

impl FromStr for NamedAmount {
    type Err = String;
    fn from_str(text: &str) -> Result<NamedAmount, String> {
        let (name, amount) = text.split_once('=').ok_or("expected NAME=AMOUNT")?;
        let amount = amount.parse::<Count>()?.0;
        if name.is_empty() {
            Err("expected NAME=AMOUNT".into())
        } else {
            Ok(NamedAmount { name: name.into(), amount })
        }
    }
}

/// Splits text into a number that is not negative and the unit after it.
fn split(text: &str) -> Result<(f64, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number =
        text[..end].parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    Ok((number, text[end..].trim()))
}

/// Returns a number with its noun: `1 task`, `2 tasks`.
pub fn plural(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

/// Rounds an age down to its largest unit: `0s`, `1m`, `2h`, `2d`.
pub fn ago(milliseconds: i64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        ..0 => "0s".into(),
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Rounds a duration: `5ms`, `1.2s`, then as [`ago`].
pub fn took(milliseconds: i64) -> String {
    match milliseconds {
        ..1_000 => format!("{milliseconds}ms"),
        1_000..60_000 => format!("{:.1}s", milliseconds as f64 / 1000.0),
        _ => ago(milliseconds),
    }
}

/// Rounds a size to its largest unit: `512 B`, `1.5 KiB`, `3 GiB`.
pub fn size(bytes: u64) -> String {
    let mut amount = bytes as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = units.next().expect("there are some");
    while amount >= 1024.0
        && let Some(next) = units.next()
    {
        (amount, unit) = (amount / 1024.0, next);
    }
    if unit == "B" || amount.fract() == 0.0 {
        format!("{amount} {unit}")
    } else {
        format!("{amount:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_parse_with_units_and_invalid_ones_are_rejected() {
        let time = |text: &str| text.parse::<Time>().map(|time| time.0.as_millis());
        assert_eq!(time("250ms"), Ok(250));
        assert_eq!(time("1.5s"), Ok(1500));
        assert_eq!(time("2"), Ok(2000));
        assert_eq!(time("10m"), Ok(600_000));
        assert!(time("ten").unwrap_err().contains("does not begin with a number"));
        assert!(time("10 parsecs").unwrap_err().contains("not a unit of time"));
        let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(bytes("4GiB"), Ok(4 << 30));
        assert_eq!(bytes("1.5 kb"), Ok(1500));
        assert_eq!(bytes("77"), Ok(77));
        assert!(bytes("4 boxes").is_err() && bytes("-1").is_err());
        let named = "licence=2".parse::<NamedAmount>().unwrap();
        assert_eq!((named.name.as_str(), named.amount), ("licence", 2.0));
        assert!("licence".parse::<NamedAmount>().is_err() && "=2".parse::<NamedAmount>().is_err());
        let count = |text: &str| text.parse::<Count>().map(|count| count.0);
        assert_eq!((count("2"), count("0.5")), (Ok(2.0), Ok(0.5)));
        for wrong in ["lots", "-1", "", "inf", "NaN"] {
            assert_eq!(count(wrong).unwrap_err(), "expected a number such as 2 or 0.5");
        }
    }

    #[test]
    fn times_and_sizes_print_in_short_human_units() {
        assert_eq!([5, 65_000, 7_200_000, 172_800_000].map(ago), ["0s", "1m", "2h", "2d"]);
        assert_eq!([5, 1_250, 65_000].map(took), ["5ms", "1.2s", "1m"]);
        assert_eq!([512, 2048, 1536, 3 << 30].map(size), ["512 B", "2 KiB", "1.5 KiB", "3 GiB"]);
    }
}
