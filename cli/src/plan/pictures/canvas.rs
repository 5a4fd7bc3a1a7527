//! Colours and text that the pictures share, and how they follow a light or a dark ground.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::super::args::Theme;

pub(super) const GROUND: RGBColor = RGBColor(0xFC, 0xFC, 0xFB);
pub(super) const INK: RGBColor = RGBColor(0x0B, 0x0B, 0x0C);
pub(super) const QUIET_INK: RGBColor = RGBColor(0x52, 0x51, 0x4E);
pub(super) const GRID: RGBColor = RGBColor(0xE1, 0xE0, 0xD9);
pub(super) const REAL: RGBColor = RGBColor(0x2A, 0x78, 0xD6);
pub(super) const PADDING: RGBColor = RGBColor(0xEB, 0x68, 0x34);

/// Each light colour and what it becomes on a dark ground.
const DARK: [(RGBColor, RGBColor); 6] = [
    (GROUND, RGBColor(0x1A, 0x1A, 0x19)),
    (INK, RGBColor(0xFF, 0xFF, 0xFE)),
    (QUIET_INK, RGBColor(0xC3, 0xC2, 0xB7)),
    (GRID, RGBColor(0x33, 0x33, 0x31)),
    (REAL, RGBColor(0x39, 0x87, 0xE5)),
    (PADDING, RGBColor(0xE3, 0x6A, 0x34)),
];

const FONT: &str = "system-ui, sans-serif";

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws on a new SVG of this size.
pub(super) fn draw(
    size: (u32, u32),
    paint: impl FnOnce(&Area<'_>) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&GROUND).map_err(drawing)?;
        paint(&root)?;
        root.present().map_err(drawing)?;
    }
    Ok(svg)
}

/// An error of the plotting crate, whose types name the backend.
pub(super) fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw the picture: {error}")
}

pub(super) fn font(size: i32, color: &RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(color)
}

pub(super) fn anchored(size: i32, color: &RGBColor, horizontal: HPos) -> TextStyle<'static> {
    font(size, color).pos(Pos::new(horizontal, VPos::Center))
}

pub(super) fn text(
    area: &Area<'_>,
    words: &str,
    at: (i32, i32),
    style: TextStyle<'_>,
) -> Result<()> {
    area.draw(&Text::new(words.to_owned(), at, style)).map_err(drawing)
}

/// A filled square and its meaning; gives back where the next one can start.
pub(super) fn key(area: &Area<'_>, color: RGBColor, words: &str, at: (i32, i32)) -> Result<i32> {
    let (x, y) = at;
    area.draw(&Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled())).map_err(drawing)?;
    text(area, words, (x + 16, y), anchored(12, &QUIET_INK, HPos::Left))?;
    Ok(x + 16 + 6 * words.chars().count() as i32 + 20)
}

/// Numbers with separators between thousands.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Short labels of large numbers: 1500 is `1.5k`.
pub(super) fn short(number: f64) -> String {
    let (scaled, unit) = match number.abs() {
        n if n >= 1e9 => (number / 1e9, "G"),
        n if n >= 1e6 => (number / 1e6, "M"),
        n if n >= 1e3 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let text = format!("{scaled:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

pub(super) fn themed(svg: &str, theme: Theme) -> String {
    match theme {
        Theme::Light => svg.to_owned(),
        Theme::Dark => DARK
            .iter()
            .fold(svg.to_owned(), |svg, (light, dark)| svg.replace(&hex(light), &hex(dark))),
        Theme::Auto => {
            let mut style = String::from("<style>@media (prefers-color-scheme: dark) {");
            for (light, dark) in &DARK {
                let (light, dark) = (hex(light), hex(dark));
                for property in ["fill", "stroke"] {
                    style.push_str(&format!(" [{property}=\"{light}\"] {{ {property}: {dark} }}"));
                }
            }
            style.push_str(" }</style>\n");
            match svg.find('>').map(|end| svg.split_at(end + 1)) {
                Some((head, body)) => format!("{head}\n{style}{body}"),
                None => svg.to_owned(),
            }
        }
    }
}

fn hex(color: &RGBColor) -> String {
    format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_has_a_dark_counterpart_in_the_svg() {
        let svg = draw((60, 30), |area| key(area, REAL, "real", (5, 10)).map(|_| ())).unwrap();
        assert!(svg.contains(&hex(&REAL)) && svg.contains(&hex(&GROUND)), "{svg}");
        let dark = themed(&svg, Theme::Dark);
        for (light, dark_color) in &DARK {
            assert!(!dark.contains(&hex(light)), "{dark}");
            assert_eq!(svg.contains(&hex(light)), dark.contains(&hex(dark_color)));
        }
        let auto = themed(&svg, Theme::Auto);
        assert!(auto.contains("prefers-color-scheme: dark"));
        assert!(auto.contains("[fill=\"#2A78D6\"] { fill: #3987E5 }"), "{auto}");
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!([short(1500.0), short(2e6), short(7.0)], ["1.5k", "2M", "7"]);
    }
}
