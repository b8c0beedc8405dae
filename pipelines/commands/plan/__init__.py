"""Commands that plan and measure."""
