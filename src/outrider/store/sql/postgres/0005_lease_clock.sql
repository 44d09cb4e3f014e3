-- By how much the server's clock has jumped so far, in one row, as those who use the store have found out.
CREATE TABLE lease_clock (jumped double precision NOT NULL);
INSERT INTO lease_clock (jumped) VALUES (0);
