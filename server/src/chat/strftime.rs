//! `strftime` as Python has it where templates were written: its own of `%f`, `%z` and `%Z`, and that of
//! the GNU C library.

use chrono::{Datelike, Local, NaiveDateTime, TimeZone, Timelike};

/// What stands between `%` and the letter of a directive.
#[derive(Default)]
struct Marks {
    /// The last of `_`, `-` and `0`.
    pad: Option<char>,
    upper: bool,
    /// Whether letters are of the other case, where the directive has one.
    other_case: bool,
    width: usize,
    /// `E` or `O`, for which plain languages have nothing of their own.
    modifier: Option<char>,
}

/// What a directive stands for.
enum Field {
    Number {
        digits: usize,
        value: i64,
    },
    /// Padded by spaces where nothing else is said.
    Spaced {
        value: i64,
    },
    Text(String),
}

/// A local time without a zone, written so: what is no directive stays as it is.
pub(super) fn strftime(format: &str, time: NaiveDateTime) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some((before, directive)) = rest.split_once('%') {
        out.push_str(before);
        let mut marks = Marks::default();
        let mut read = directive.chars().peekable();
        while let Some(flag) = read.next_if(|c| "_-0^#".contains(*c)) {
            match flag {
                '^' => marks.upper = true,
                '#' => marks.other_case = true,
                pad => marks.pad = Some(pad),
            }
        }
        while let Some(digit) = read.peek().and_then(|c| c.to_digit(10)) {
            // Who asks for more gets as much as a prompt could hold.
            marks.width = (marks.width * 10 + digit as usize).min(1 << 10);
            read.next();
        }
        marks.modifier = read.next_if(|c| "EO".contains(*c));
        let letter = read.next();
        let length = directive.len() - String::from_iter(read).len();
        let text = &directive[..length];
        rest = &directive[length..];
        match text {
            "f" => out.push_str(&format!("{:06}", time.and_utc().timestamp_subsec_micros())),
            "z" | "Z" => {}
            _ => {
                let field = letter.and_then(|letter| field(letter, &mut marks, time));
                marks.write(field.unwrap_or_else(|| Field::Text(format!("%{text}"))), &mut out);
            }
        }
    }
    out + rest
}

/// The value of a directive, and what its letter says of its case; nothing where there is no such.
fn field(letter: char, marks: &mut Marks, time: NaiveDateTime) -> Option<Field> {
    let refused = match letter {
        'a' | 'A' | 'D' | 'F' | '%' => "EO",
        'b' | 'B' | 'd' | 'e' | 'g' | 'G' | 'h' | 'H' | 'I' | 'j' | 'k' | 'l' | 'm' | 'M' | 'S'
        | 'U' | 'V' | 'w' | 'W' => "E",
        'c' | 'x' | 'X' | 'Y' => "O",
        _ => "",
    };
    if marks.modifier.is_some_and(|modifier| refused.contains(modifier)) {
        return None;
    }
    let number = |digits, value| Some(Field::Number { digits, value: i64::from(value) });
    let spaced = |value| Some(Field::Spaced { value: i64::from(value) });
    let two = |value: u32| number(2, value as i32);
    let (date, week) = (time.date(), time.iso_week());
    let (year, day, hour) = (date.year(), date.day(), time.hour());
    let hour_of_half = (hour + 11) % 12 + 1;
    let weekday = date.weekday();
    // The number of the week where weeks begin so many days after Sunday.
    let week_from = |late: u32| {
        two((date.ordinal0() + 7 - (weekday.num_days_from_sunday() + 7 - late) % 7) / 7)
    };
    match letter {
        'C' => number(2, year.div_euclid(100)),
        'd' => two(day),
        'e' => spaced(day as i32),
        'G' => number(4, week.year()),
        'g' => number(2, week.year().rem_euclid(100)),
        'H' => two(hour),
        'I' => two(hour_of_half),
        'j' => number(3, date.ordinal() as i32),
        'k' => spaced(hour as i32),
        'l' => spaced(hour_of_half as i32),
        'M' => two(time.minute()),
        'm' => two(date.month()),
        'S' => two(time.second()),
        's' => {
            let local = Local.from_local_datetime(&time).earliest();
            let value = local.map_or(time.and_utc().timestamp(), |local| local.timestamp());
            Some(Field::Number { digits: 1, value })
        }
        'u' => number(1, weekday.number_from_monday() as i32),
        'U' => week_from(0),
        'V' => two(week.week()),
        'w' => number(1, weekday.num_days_from_sunday() as i32),
        'W' => week_from(1),
        'Y' => number(4, year),
        'y' => number(2, year.rem_euclid(100)),
        'p' | 'P' => {
            marks.upper &= letter == 'p' && !marks.other_case;
            let lower = letter == 'P' || marks.other_case;
            let halves = if lower { ["am", "pm"] } else { ["AM", "PM"] };
            Some(Field::Text(halves[usize::from(hour >= 12)].to_owned()))
        }
        '%' => Some(Field::Text("%".to_owned())),
        'n' => Some(Field::Text("\n".to_owned())),
        't' => Some(Field::Text("\t".to_owned())),
        'a' | 'A' | 'b' | 'B' | 'h' => {
            marks.upper |= marks.other_case;
            Some(Field::Text(time.format(&format!("%{letter}")).to_string()))
        }
        'c' | 'D' | 'F' | 'r' | 'R' | 'T' | 'x' | 'X' => {
            Some(Field::Text(time.format(&format!("%{letter}")).to_string()))
        }
        _ => None,
    }
}

impl Marks {
    fn write(&self, field: Field, out: &mut String) {
        let (mut text, digits, pad) = match field {
            Field::Number { digits, value } => (value.to_string(), digits, self.pad.unwrap_or('0')),
            Field::Spaced { value } => (value.to_string(), 2, self.pad.unwrap_or('_')),
            Field::Text(text) => (text, 0, '-'),
        };
        let padding = digits.max(self.width).saturating_sub(text.len());
        match pad {
            '-' => {}
            '_' => text.insert_str(0, &" ".repeat(padding)),
            _ => text.insert_str(0, &"0".repeat(padding)),
        }
        if self.upper {
            text = text.to_uppercase();
        }
        let lacking = self.width.saturating_sub(text.len());
        out.push_str(&(if self.pad == Some('0') { "0" } else { " " }).repeat(lacking));
        out.push_str(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Python 3.11 writes of the same time with the GNU C library.
    #[test]
    fn times_are_written_as_python_writes_them() {
        let date = chrono::NaiveDate::from_ymd_opt(2026, 3, 7).unwrap();
        let time = date.and_hms_micro_opt(9, 5, 4, 321).unwrap();
        for (format, expected) in [
            ("%d %b %Y", "07 Mar 2026"),
            ("%A, %B %d, %Y", "Saturday, March 07, 2026"),
            ("%-d %B %Y, %_H:%M %p", "7 March 2026,  9:05 AM"),
            ("%H Uhr am %d.%m.", "09 Uhr am 07.03."),
            ("%c", "Sat Mar  7 09:05:04 2026"),
            ("%f|%Z|%z|", "000321|||"),
            ("100%", "100%"),
            ("100% é %!", "100% é %!"),
            ("%%d %^a", "%d SAT"),
            ("%-p %-B", "AM March"),
            ("%j %U %y %x %X", "066 09 26 03/07/26 09:05:04"),
            (
                "%Oy %Ey %OB %Ec %Od %Ed %OY %EY|%OQ",
                "26 26 March Sat Mar  7 09:05:04 2026 07 %Ed %OY 2026|%OQ",
            ),
            ("%10d|%3d|%-10d|%_10d|%010d", "0000000007|007|         7|         7|0000000007"),
            (
                "%10A|%010B|%-10b|%_10a|%^10a",
                "  Saturday|00000March|       Mar|       Sat|       SAT",
            ),
            (
                "%#a %#A %#b %#B %#h %#p %#P %^p %^P %#d %#c",
                "SAT SATURDAY MAR MARCH MAR am am AM am 07 Sat Mar  7 09:05:04 2026",
            ),
            (
                "%^c %^x %#r %r %R %T %D %F",
                "SAT MAR  7 09:05:04 2026 03/07/26 09:05:04 AM 09:05:04 AM 09:05 09:05:04 03/07/26 2026-03-07",
            ),
            (
                "%C %G %g %V %u %w %W %e %k %l %I %S %n%t|",
                "20 2026 26 10 6 6 09  7  9  9 09 04 \n\t|",
            ),
            (
                "%_d %-m %0e %-e %_e %_k %-k %0k %3e %_Y %6Y %-6Y",
                " 7 3 07 7  7  9 9 09   7 2026 002026   2026",
            ),
            ("%Q %10Q %^Q", "%Q       %10Q %^Q"),
            ("%_-d %-_d %+d %+Y", "7  7 %+d %+Y"),
            ("%3%|%5n|%2t|", "  %|    \n| \t|"),
            ("%5", "   %5"),
            ("%-", "%-"),
            ("%#", "%#"),
            ("%E", "%E"),
            ("%15c|%-15D|%012T", "Sat Mar  7 09:05:04 2026|       03/07/26|000009:05:04"),
            ("%^B %^h %^d", "MARCH MAR 07"),
            ("%EC %OC %Ex %Ox %OS %EX", "20 20 03/07/26 %Ox 04 09:05:04"),
        ] {
            assert_eq!(strftime(format, time), expected, "{format}");
        }
        let local = Local.from_local_datetime(&time).earliest().unwrap().timestamp();
        assert_eq!(strftime("%s|%15s", time), format!("{local}|{local:015}"));
    }
}
